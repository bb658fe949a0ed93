// What the host and the patches share: how accesses of kernels are kept on a device, and how they reach the host.
//
// A launch has a `Launch`. For each page of 64 KiB that it touches, and each kind of access, it has an entry in the one hash
// table of its context, and the entry a leaf: a bit for each byte of the page. The last warp of a launch sends what the
// leaves say into a ring in the host's memory, clears them, and gives all back. So nothing is put into the program's streams.
#pragma once
#include <cstdint>

constexpr uint32_t PAGE_BITS = 16, LEAF_WORDS = (1u << PAGE_BITS) / 32;
// Kinds of accesses. BOXES are tensor copies.
constexpr uint32_t READ = 0, WRITE = 1, ATOMIC = 2, BOXES = 3, EARLY = 4;

// An entry of the hash table. Its key has the launch's tag, the page and the kind of access: entries of launches
// before are not taken for those of this one, even by a multiprocessor whose cache is stale.
struct alignas(16) Entry {
    unsigned long long key;
    uint32_t leaf;  // one more than its number, and FULL if all its bits are set
    uint32_t next;  // one more than the number of the next entry of the launch in this list
};
constexpr uint32_t ENTRIES = 1 << 20, BUCKET = 8, LISTS = 32, FULL = 1u << 31, NO_LEAF = ~0u;

// Which words of a leaf have a bit set. Each counts once, so that words from the first to the last that are as many as the count leave no gap.
struct alignas(16) Extent {
    uint32_t counts;       // how many have a bit set, and, in units of FULL_WORD, all bits
    uint32_t first, last;  // LEAF_WORDS less the number of the first; one more than that of the last
    uint32_t unused;
};
constexpr uint32_t FULL_WORD = 1 << 16;

// The memory of a context. All counters only increase.
struct Arena {
    Entry* entries;
    uint32_t* leaves;
    Extent* extents;            // by leaf
    uint32_t* free;             // a ring of the numbers of free leaves: a cache must have forgotten a leaf before it is taken again
    unsigned long long* ring;   // of the host
    unsigned long long* taken;  // how many words the host has taken; in the host's memory
    uint32_t free_mask;
    unsigned long long ring_words;  // a power of two
    alignas(128) unsigned long long free_taken;
    alignas(128) unsigned long long free_given, free_reserved;
    alignas(128) unsigned long long head, may_write_to;
};

// Where the code of a kernel begins that waits for the launches before it, and where it waits first.
struct Wait {
    unsigned long long from, at;
};

// What the patches of a launch get. `tag` is in the key of entries; the last warp advances it for the launch that comes next.
struct alignas(128) Launch {
    Entry* entries;
    uint32_t tag, number;
    uint32_t* leaves;
    Extent* extents;
    Wait* waits;  // by number
    Arena* arena;
    alignas(128) unsigned long long exited;
    unsigned long long grid;  // of a graph's node: one more than the number of the running grid; 0: free
    uint32_t lost, lists[LISTS];
};
constexpr uint32_t TAG_BITS = 28;
// `Launch`es for launches by the host, and after them those for nodes of graphs: at the number of the running grid, modulo GRIDS.
constexpr uint32_t LAUNCHES = 1 << 15, GRIDS = 1 << 14;
// In what patches get: whether it is a graph's node; and from WAIT_SHIFT on, which wait the kernel has.
constexpr unsigned long long OF_GRAPH = 1;
constexpr uint32_t WAIT_SHIFT = 48, MAX_WAITS = 1 << 15;

// The first word of a record in the ring: what it is, how many words it has, and the number of the `Launch`.
enum Said : uint32_t { RUN = 1, BITS = 2, BOX = 3, END = 4, SKIP = 5, MAP = 6 };
#ifdef __CUDACC__
#define BOTH_SIDES __host__ __device__
#else
#define BOTH_SIDES
#endif
BOTH_SIDES constexpr unsigned long long said(uint32_t what, uint32_t words, uint32_t launch) {
    return (unsigned long long)what << 56 | (unsigned long long)words << 32 | launch;
}
// Runs and ends are two words, of which neither is zero: the host waits for both, so their order does not matter.
// A run of bytes of a page: the page, the kind and the `Launch`; the first and the last byte.
BOTH_SIDES constexpr unsigned long long run_of(uint32_t page, uint32_t kind, uint32_t launch) {
    return (unsigned long long)RUN << 56 | (unsigned long long)launch << 40 | (unsigned long long)kind << 32 | page;
}
BOTH_SIDES constexpr unsigned long long run_from(uint32_t first, uint32_t last) { return 1ull << 63 | first << 16 | last; }
// The second word of an end: whether something was lost, and the number of the grid.
BOTH_SIDES constexpr unsigned long long end_of(bool is_lost, unsigned long long grid) {
    return 1ull << 63 | (unsigned long long)is_lost << 62 | (grid & ~(3ull << 62));
}
