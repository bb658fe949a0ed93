// What runs before each access to global memory of every kernel of a program.
//
// Compiled by the user's own nvcc: see `exact.rs`. VERSION is that of NVIDIA's library, since 13.3 and 13.5 changed
// the arguments of callbacks.
#include <sanitizer_patching.h>

#include "table.h"

namespace {

using u64 = unsigned long long;

__device__ __forceinline__ Entry unpacked(uint4 v) { return {(u64)v.y << 32 | v.x, v.z, v.w}; }
// In one piece, from the cache.
__device__ __forceinline__ uint4 loaded(const void* at) {
    uint4 v;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
__device__ __forceinline__ u64 current(const u64* at) { return *reinterpret_cast<const volatile u64*>(at); }
__device__ __forceinline__ uint32_t current(const uint32_t* at) { return *reinterpret_cast<const volatile uint32_t*>(at); }
__device__ __forceinline__ void put(u64* at, u64 word) { *reinterpret_cast<volatile u64*>(at) = word; }
__device__ __forceinline__ void put(uint32_t* at, uint32_t word) { *reinterpret_cast<volatile uint32_t*>(at) = word; }
__device__ __forceinline__ uint32_t lane_number() {
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// The number of the running grid, which the library knows as `gridId`.
__device__ __forceinline__ u64 grid_number() {
    u64 grid;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
    return grid;
}

__device__ __forceinline__ u64 key_of(uint32_t tag, u64 place, uint32_t kind) { return (u64)tag << 36 | place << 4 | kind; }
__device__ __forceinline__ u64 page_of(u64 key) { return (key >> 4 & 0xffffffffull) << PAGE_BITS; }
// Eight pages that follow each other share a bucket, which is a line of the cache.
__device__ __forceinline__ uint32_t slot_of(uint32_t tag, uint32_t place, uint32_t kind) {
    uint32_t mixed = (place / BUCKET) * 0x9E3779B1u + tag * 0x85EBCA77u + kind * 0xC2B2AE3Du;
    return (mixed >> 12) % (ENTRIES / BUCKET) * BUCKET + place % BUCKET;
}
__device__ __forceinline__ uint32_t slot_of(u64 key) { return slot_of(key >> 36, key >> 4, key & 15); }

// Takes a leaf, cleared. NO_LEAF: there is none.
__device__ uint32_t take_leaf(Arena* arena) {
    for (;;) {
        u64 mine = current(&arena->free_taken);
        if (mine >= current(&arena->free_given)) return NO_LEAF;
        if (atomicCAS(&arena->free_taken, mine, mine + 1) == mine) return __ldcg(&arena->free[mine & arena->free_mask]);
    }
}

// Returns the entry with a key, which may be new; with `with_leaf`, a new one gets a leaf. Null: there is no room.
__device__ __noinline__ Entry* find(Launch* launch, u64 key, bool with_leaf) {
    for (uint32_t turn = 0; turn < 2; turn++) {
        uint32_t first = (slot_of(key) ^ turn * 0x5bd10 * BUCKET) & (ENTRIES - 1);
        for (uint32_t i = 0; i < BUCKET; i++) {
            uint32_t slot = (first & ~(BUCKET - 1)) + ((first + i) & (BUCKET - 1));
            Entry* entry = &launch->entries[slot];
            u64 there = current(&entry->key);
            if (there == 0) there = atomicCAS(&entry->key, 0ull, key);
            if (there == 0) {
                put(&entry->next, atomicExch(&launch->lists[(key >> 4) % LISTS], slot + 1));
                if (with_leaf) put(&entry->leaf, take_leaf(launch->arena));
                return entry;
            }
            if (there == key) return entry;
        }
    }
    return nullptr;
}

// Returns the leaf of a page that seemed to have none; NO_LEAF: it has none. One lane asks for all that want the same page.
__device__ __noinline__ uint32_t leaf_of(Launch* launch, u64 key) {
    uint32_t mask = __activemask(), leader = __ffs(__match_any_sync(mask, (uint32_t)(key >> 4))) - 1, leaf = NO_LEAF;
    if (lane_number() == leader) {
        Entry* entry = find(launch, key, true);
        // Who makes the entry does not wait for anything.
        while (entry && (leaf = current(&entry->leaf)) == 0) {
        }
        if (leaf == NO_LEAF) put(&launch->lost, 1);
    }
    __syncwarp(mask);
    return __shfl_sync(mask, leaf, leader);
}

// A page has all its bits set: later accesses need to look at its entry only.
__device__ __noinline__ void page_is_full(Launch* launch, u64 key) {
    Entry* entry = find(launch, key, false);
    if (entry) atomicOr(&entry->leaf, FULL);
}

// The entry of a page as the cache has it; its leaf is zero if there is none. Most accesses are to pages that are full.
__device__ __forceinline__ uint32_t cached_leaf(const Launch* launch, u64 address, uint32_t kind, u64* key) {
    uint4 front = loaded(launch);
    const Entry* entries = reinterpret_cast<const Entry*>((u64)front.y << 32 | front.x);
    uint32_t page = address >> PAGE_BITS, tag = front.z;
    *key = key_of(tag, page, kind);
    Entry entry = unpacked(loaded(&entries[slot_of(tag, page, kind)]));
    return entry.key == *key ? entry.leaf : 0;
}

// Notes an access to at most 32 bytes that do not cross a multiple of 32, at an address of the program.
__device__ __forceinline__ void note(Launch* launch, u64 address, uint32_t bytes, uint32_t kind) {
    u64 key;
    uint32_t leaf = cached_leaf(launch, address, kind, &key);
    if (leaf & FULL) return;
    if (leaf == 0) leaf = leaf_of(launch, key);
    if (leaf & FULL) return;
    uint32_t* word = &launch->leaves[(size_t)(leaf - 1) * LEAF_WORDS + address % (1u << PAGE_BITS) / 32];
    uint32_t bits = (bytes >= 32 ? ~0u : (1u << bytes) - 1) << address % 32;
    if ((*word & bits) == bits) return;
    uint32_t before = atomicOr(word, bits);
    bool is_first = before == 0, fills = (before | bits) == ~0u && before != ~0u;
    if (!is_first && !fills) return;
    // Many threads begin or fill words of one page at once: one lane counts for all of its warp.
    uint32_t mask = __activemask(), lane = lane_number(), same = __match_any_sync(mask, leaf);
    uint32_t firsts = __ballot_sync(mask, is_first) & same, filled = __popc(__ballot_sync(mask, fills) & same);
    uint32_t index = address % (1u << PAGE_BITS) / 32, low = firsts ? __ffs(firsts) - 1 : lane, high = firsts ? 31 - __clz(firsts) : lane;
    uint32_t lowest = __shfl_sync(mask, index, low), highest = __shfl_sync(mask, index, high);
    Extent* extent = &launch->extents[leaf - 1];
    if (is_first && (lane == low || index < lowest)) atomicMax(&extent->first, LEAF_WORDS - index);
    if (is_first && (lane == high || index > highest)) atomicMax(&extent->last, index + 1);
    if (lane != __ffs(same) - 1) return;
    uint32_t more = filled * FULL_WORD + __popc(firsts);
    if (!filled) atomicAdd(&extent->counts, more);
    else if (atomicAdd(&extent->counts, more) / FULL_WORD + filled == LEAF_WORDS) page_is_full(launch, key);
}

// Notes an access to any range.
__device__ __noinline__ void note_range(Launch* launch, u64 address, u64 bytes, uint32_t kind) {
    for (u64 end = address + bytes; address < end;) {
        u64 next = (address / 32 + 1) * 32 < end ? (address / 32 + 1) * 32 : end;
        note(launch, address, (uint32_t)(next - address), kind);
        address = next;
    }
}

// Takes words of the ring for records; waits for the host where it is full.
__device__ u64 take_words(Arena* arena, uint32_t words) {
    for (;;) {
        u64 end = current(&arena->may_write_to), at = atomicAdd(&arena->head, (u64)words), place = at & (arena->ring_words - 1);
        for (; at + words > end; end = current(&arena->may_write_to))
            atomicMax(&arena->may_write_to, current(arena->taken) + arena->ring_words);
        if (place + words <= arena->ring_words) return place;
        // Records lie in one piece: the words up to the end are skipped, and as many at the beginning as were taken there.
        u64 left = arena->ring_words - place;
        put(&arena->ring[place], said(SKIP, (uint32_t)left, 0));
        put(&arena->ring[0], said(SKIP, (uint32_t)(words - left), 0));
    }
}

// The lanes of a warp that are at the same place, of which this is one.
struct Lanes {
    uint32_t mask, lane, mine, count;
    __device__ Lanes() : mask(__activemask()), lane(lane_number()) {
        mine = __popc(mask & ((1u << lane) - 1));
        count = __popc(mask);
    }
    __device__ uint32_t leader() const { return __ffs(mask) - 1; }
    // How many lanes with a lower number say yes; `all` is how many of all. (A patch may not contain `redux`.)
    __device__ uint32_t before(bool says_yes, uint32_t* all) const {
        uint32_t yes = __ballot_sync(mask, says_yes);
        *all = __popc(yes);
        return __popc(yes & ((1u << lane) - 1));
    }
};

// Sends all bits of a leaf.
__device__ void send_bits(const Lanes& lanes, Arena* arena, uint32_t number, u64 key, const uint32_t* leaf) {
    u64 at = lanes.lane == lanes.leader() ? take_words(arena, 2 + LEAF_WORDS / 2) : 0;
    at = __shfl_sync(lanes.mask, at, lanes.leader());
    const uint4* words = reinterpret_cast<const uint4*>(leaf);
    for (uint32_t i = lanes.mine; i < LEAF_WORDS / 4; i += lanes.count) {
        uint4 four = __ldcg(&words[i]);
        put(&arena->ring[at + 2 + 2 * i], (u64)four.y << 32 | four.x);
        put(&arena->ring[at + 3 + 2 * i], (u64)four.w << 32 | four.z);
    }
    if (lanes.lane == lanes.leader()) put(&arena->ring[at + 1], page_of(key) | (key & 7) << 60);
    __threadfence_system();
    __syncwarp(lanes.mask);
    if (lanes.lane == lanes.leader()) put(&arena->ring[at], said(BITS, 2 + LEAF_WORDS / 2, number));
}

__device__ __forceinline__ bool has_leaf(const Entry& entry) {
    return entry.leaf && entry.leaf != NO_LEAF && (entry.key & 3) != BOXES;
}

// Sends what entries say, one of each lane (no key: none), and clears their leaves.
__device__ void send(const Lanes& lanes, Launch* launch, const Entry& entry) {
    Arena* arena = launch->arena;
    u64 key = entry.key;
    uint32_t leaf = entry.leaf & ~FULL, start = LEAF_WORDS, end = 0, first = 0, last = 0;
    bool has = has_leaf(entry), is_run = false;
    if (has) {
        uint4 extent = __ldcg(reinterpret_cast<const uint4*>(&arena->extents[leaf - 1]));
        uint32_t words = extent.x % FULL_WORD, partial = words - extent.x / FULL_WORD;
        start = LEAF_WORDS - extent.y, end = extent.z;
        if (words && end - start == words) {
            const uint32_t* bits = arena->leaves + (size_t)(leaf - 1) * LEAF_WORDS;
            uint32_t head = __ldcg(bits + start), tail = __ldcg(bits + end - 1);
            uint32_t from = __ffs(head) - 1, run = words == 1 ? head >> from : tail;
            // Words between the two that are not full are counted as partial ones.
            is_run = partial == (head != ~0u) + (words > 1 && tail != ~0u) && !(run & (run + 1)) &&
                     (words == 1 || head == ~0u << from);
            first = start * 32 + from, last = end * 32 - 1 - __clz(tail);
        }
    }
    uint32_t all, mine = lanes.before(is_run, &all);
    if (all) {
        u64 at = lanes.lane == lanes.leader() ? take_words(arena, 2 * all) : 0;
        at = __shfl_sync(lanes.mask, at, lanes.leader()) + 2 * mine;
        if (is_run) {
            put(&arena->ring[at + 1], run_from(first, last));
            put(&arena->ring[at], run_of(key >> 4, key & 7, launch->number));
        }
    }
    for (uint32_t rest = __ballot_sync(lanes.mask, start < end && !is_run); rest; rest &= rest - 1) {
        uint32_t from = __ffs(rest) - 1, its = __shfl_sync(lanes.mask, leaf, from);
        send_bits(lanes, arena, launch->number, __shfl_sync(lanes.mask, key, from), arena->leaves + (size_t)(its - 1) * LEAF_WORDS);
    }
    for (uint32_t rest = __ballot_sync(lanes.mask, start < end); rest; rest &= rest - 1) {
        uint32_t from = __ffs(rest) - 1, its = __shfl_sync(lanes.mask, leaf, from);
        uint4* words = reinterpret_cast<uint4*>(arena->leaves + (size_t)(its - 1) * LEAF_WORDS);
        uint32_t to = (__shfl_sync(lanes.mask, end, from) + 3) / 4;
        for (uint32_t i = __shfl_sync(lanes.mask, start, from) / 4 + lanes.mine; i < to; i += lanes.count)
            __stcg(&words[i], make_uint4(0, 0, 0, 0));
    }
    if (has) __stcg(reinterpret_cast<uint4*>(&arena->extents[leaf - 1]), make_uint4(0, 0, 0, 0));
}

// Calls a function with the entries of a launch, one of each lane (null: none).
template <class F> __device__ __forceinline__ void each_entry(const Lanes& lanes, Launch* launch, F function) {
    for (uint32_t list = 0; list < LISTS; list += lanes.count) {
        uint32_t slot = list + lanes.mine < LISTS ? current(&launch->lists[list + lanes.mine]) : 0;
        while (__any_sync(lanes.mask, slot != 0)) {
            Entry* entry = slot ? &launch->entries[slot - 1] : nullptr;
            Entry copy = slot ? unpacked(__ldcg(reinterpret_cast<const uint4*>(entry))) : Entry{};
            function(entry, copy);
            slot = copy.next;
        }
    }
}

// All threads of the launch have made their last access: sends what they did, and makes all ready for the next launch.
// Each step here keeps the launch that comes next in the stream waiting.
__device__ __noinline__ void finish(Launch* launch, const Lanes& lanes) {
    Arena* arena = launch->arena;
    uint32_t leaves = 0, all;
    each_entry(lanes, launch, [&](Entry*, const Entry& copy) {
        lanes.before(has_leaf(copy), &all);
        leaves += all;
    });
    bool is_leader = lanes.lane == lanes.leader();
    u64 first = is_leader ? atomicAdd(&arena->free_reserved, (u64)leaves) : 0;
    u64 place = first = __shfl_sync(lanes.mask, first, lanes.leader());
    each_entry(lanes, launch, [&](Entry* entry, const Entry& copy) {
        send(lanes, launch, copy);
        uint32_t mine = lanes.before(has_leaf(copy), &all);
        if (has_leaf(copy)) put(&arena->free[(place + mine) & arena->free_mask], copy.leaf & ~FULL);
        place += all;
        // A key that is gone with the rest of its entry, so that no thread sees a part of it.
        if (entry) __stcg(reinterpret_cast<uint4*>(entry), make_uint4(0, 0, 0, 0));
    });
    for (uint32_t list = lanes.mine; list < LISTS; list += lanes.count) put(&launch->lists[list], 0);
    bool is_lost = current(&launch->lost);
    __syncwarp(lanes.mask);
    if (is_leader) {
        put(&launch->lost, 0);
        put(&launch->exited, 0);
        put(&launch->tag, launch->tag + 1 == 1u << TAG_BITS ? 1 : launch->tag + 1);
    }
    __threadfence_system();
    __syncwarp(lanes.mask);
    if (!is_leader) return;
    // Those before wait for the host at most, which waits for nothing that has not been begun.
    while (leaves && atomicCAS(&arena->free_given, first, first + leaves) != first) {
    }
    u64 at = take_words(arena, 2);
    put(&arena->ring[at + 1], end_of(is_lost, grid_number()));
    put(&arena->ring[at], said(END, 2, launch->number));
    // From here on, another grid may have its place.
    __threadfence();
    put(&launch->grid, 0);
}

// The launch that a patch is called for, by what the host gave with it; null if that is not watched. The nodes of a graph that
// have the same function get the same, so their number tells them apart.
__device__ __forceinline__ Launch* launch_of(void* data) {
    u64 given = (u64)data & ((1ull << WAIT_SHIFT) - 1);
    Launch* launch = reinterpret_cast<Launch*>(given & ~OF_GRAPH);
    if (!(given & OF_GRAPH)) return launch;
    u64 grid = grid_number() + 1;
    launch += grid % GRIDS;
    if (current(&launch->grid) == grid) return launch;
    u64 there = atomicCAS(&launch->grid, 0ull, grid);
    return there == 0 || there == grid ? launch : nullptr;
}
// EARLY for accesses of a kernel's own code before its wait.
__device__ __forceinline__ uint32_t early(const Launch* launch, void* data, u64 pc) {
    u64 number = (u64)data >> WAIT_SHIFT;
    if (number == 0) return 0;
    Wait wait = launch->waits[number];
    return wait.from <= pc && pc < wait.at ? EARLY : 0;
}
// All active lanes of a warp have the same arguments.
__device__ __forceinline__ Launch* launch_of_first_lane(void* data) {
    return lane_number() == __ffs(__activemask()) - 1 ? launch_of(data) : nullptr;
}

}  // namespace

#define PATCH extern "C" __device__ __noinline__ SanitizerPatchResult

namespace {

// A function of its own, so that accesses to full pages save no registers.
__device__ __noinline__ SanitizerPatchResult note_access(void* data, u64 pc, u64 address, uint32_t bytes, uint32_t kind) {
    Launch* launch = launch_of(data);
    if (launch) note(launch, address, bytes, kind | early(launch, data, pc));
    return SANITIZER_PATCH_SUCCESS;
}
__device__ __forceinline__ SanitizerPatchResult accessed(void* data, u64 pc, u64 address, uint32_t bytes, uint32_t kind) {
    u64 key;
    bool is_plain = !((u64)data & OF_GRAPH) && !((u64)data >> WAIT_SHIFT);
    if (is_plain && cached_leaf(reinterpret_cast<const Launch*>(data), address, kind, &key) & FULL) return SANITIZER_PATCH_SUCCESS;
    return note_access(data, pc, address, bytes, kind);
}

}  // namespace

PATCH sidestream_access(void* data, uint64_t pc, void* address, uint32_t bytes, uint32_t flags, const void*) {
    constexpr uint32_t BOTH = SANITIZER_MEMORY_DEVICE_FLAG_READ | SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
    // Bits that libraries before 13.2 and 13.4 do not set: scopes of a block, of a multiprocessor; and that nothing is returned.
    constexpr uint32_t NARROW = 1u << 4 | 1u << 5, WRITE_ONLY = 1u << 8;
    if (!data || flags & SANITIZER_MEMORY_DEVICE_FLAG_PREFETCH || !(flags & BOTH)) return SANITIZER_PATCH_SUCCESS;
    uint32_t kind = flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE ? WRITE : READ;
    if (((flags & BOTH) == BOTH || flags & WRITE_ONLY) && !(flags & NARROW)) kind = ATOMIC;
    return accessed(data, pc, (u64)address, bytes, kind);
}

#if VERSION >= 135
PATCH sidestream_async(void* data, uint64_t pc, void* source, uint32_t, uint32_t bytes, uint32_t zeros) {
    bytes = zeros < bytes ? bytes - zeros : 0;
#else
PATCH sidestream_async(void* data, uint64_t pc, void* source, uint32_t, uint32_t bytes) {
#endif
    return data && bytes ? accessed(data, pc, (u64)source, bytes, READ) : SANITIZER_PATCH_SUCCESS;
}

// Bulk copies are of blocks of 16 bytes.
PATCH sidestream_bulk_load(void* data, uint64_t pc, uint64_t source, uint32_t, uint32_t, uint32_t blocks, uint32_t) {
    Launch* launch = launch_of_first_lane(data);
    if (launch) note_range(launch, source, (blocks & 0xffff) * 16ull, READ | early(launch, data, pc));
    return SANITIZER_PATCH_SUCCESS;
}

#if VERSION >= 133
PATCH sidestream_bulk_store(void* data, uint64_t pc, uint64_t to, uint32_t, uint32_t blocks, uint32_t is_masked) {
    Launch* launch = launch_of_first_lane(data);
    if (!launch) return SANITIZER_PATCH_SUCCESS;
    uint32_t kind = WRITE | early(launch, data, pc), mask = is_masked ? blocks >> 16 : 0xffff;
    blocks &= 0xffff;
    if (mask == 0xffff) {
        note_range(launch, to, blocks * 16ull, kind);
        return SANITIZER_PATCH_SUCCESS;
    }
    for (uint32_t byte = 0; byte < blocks * 16; byte++)
        if (mask >> byte % 16 & 1) note_range(launch, to + byte, 1, kind);
    return SANITIZER_PATCH_SUCCESS;
}
#else
PATCH sidestream_bulk_store(void* data, uint64_t pc, uint64_t to, uint32_t, uint32_t blocks) {
    Launch* launch = launch_of_first_lane(data);
    if (launch) note_range(launch, to, blocks * 16ull, WRITE | early(launch, data, pc));
    return SANITIZER_PATCH_SUCCESS;
}
#endif

PATCH sidestream_bulk_reduce(void* data, uint64_t pc, uint64_t to, uint32_t, uint32_t blocks) {
    Launch* launch = launch_of_first_lane(data);
    if (launch) note_range(launch, to, blocks * 16ull, ATOMIC | early(launch, data, pc));
    return SANITIZER_PATCH_SUCCESS;
}

#if VERSION >= 133
namespace {

__device__ __forceinline__ u64 mixed(u64 hash, u64 word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

// Whether the launch has not said this before: 60 bits tell one thing from another.
__device__ bool is_new(Launch* launch, u64 hash) {
    Entry* entry = find(launch, key_of(launch->tag, hash >> 32, BOXES), false);
    uint32_t mark = (uint32_t)hash | 1;
    return !entry || atomicCAS(&entry->leaf, 0u, mark) != mark;
}

// Sends a tensor copy, unless the launch has sent the same before: the host knows what the map says.
__device__ __noinline__ void note_box(Launch* launch, u64 map, uint32_t what, u64 c01, u64 c23, uint32_t c4) {
    Arena* arena = launch->arena;
    u64 words[16], hash = 0;
    for (uint32_t i = 0; i < 16; i++) hash = mixed(hash, words[i] = reinterpret_cast<const u64*>(map)[i]);
    if (is_new(launch, hash)) {
        u64 at = take_words(arena, 18);
        put(&arena->ring[at + 1], hash);
        for (uint32_t i = 0; i < 16; i++) put(&arena->ring[at + 2 + i], words[i]);
        __threadfence_system();
        put(&arena->ring[at], said(MAP, 18, launch->number));
    }
    if (is_new(launch, mixed(mixed(mixed(mixed(hash, what), c01), c23), c4))) {
        u64 at = take_words(arena, 6);
        put(&arena->ring[at + 1], hash);
        put(&arena->ring[at + 2], what);
        put(&arena->ring[at + 3], c01);
        put(&arena->ring[at + 4], c23);
        put(&arena->ring[at + 5], c4);
        __threadfence_system();
        put(&arena->ring[at], said(BOX, 6, launch->number));
    }
}

}  // namespace

// Stores of tensors have no callback (13.3 to 13.5).
PATCH sidestream_tensor_load(void* data, uint64_t pc, uint64_t map, uint32_t, uint32_t, int32_t c0, int32_t c1, int32_t c2,
                             int32_t c3, int32_t c4, uint32_t dim, uint32_t, uint32_t, uint32_t mode) {
    Launch* launch = launch_of_first_lane(data);
    if (!launch) return SANITIZER_PATCH_SUCCESS;
    uint32_t what = READ | mode << 8 | dim << 16 | (early(launch, data, pc) ? 1u << 24 : 0);
    note_box(launch, map, what, (uint32_t)c0 | (u64)(uint32_t)c1 << 32, (uint32_t)c2 | (u64)(uint32_t)c3 << 32, (uint32_t)c4);
    return SANITIZER_PATCH_SUCCESS;
}
#endif

PATCH sidestream_exit(void* data, uint64_t) {
    Launch* launch = launch_of(data);
    if (!launch) return SANITIZER_PATCH_SUCCESS;
    Lanes lanes;
    __threadfence();
    __syncwarp(lanes.mask);
    uint32_t is_last = 0;
    if (lanes.lane == lanes.leader()) {
        u64 all = (u64)gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z;
        is_last = atomicAdd(&launch->exited, (u64)lanes.count) + lanes.count == all;
    }
    if (__shfl_sync(lanes.mask, is_last, lanes.leader())) {
        __threadfence();
        finish(launch, lanes);
    }
    return SANITIZER_PATCH_SUCCESS;
}
