// Hears launches by NVIDIA's Sanitizer API, has each kernel note which bytes it accesses, and passes that on.
//
// Compiled on the user's machine against the user's own headers: see `exact.rs`. VERSION is that of the library.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <sanitizer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "table.h"

// What the library that is injected into the program passes.
struct Calls {
    const char* patches;
    const char* only;  // names, with line feeds between them
    uint32_t ids_len;
    void (*heard)(void*, int, uint32_t, const void*);
    void (*write)(uint32_t, const uint64_t*, size_t);
    const uint16_t* ids;  // the calls to hear; those of the runtime are numbered from 4096 on
    // Says whether a launch is to be watched: module, function, dimensions, number. Null: all are.
    int (*watches)(uint64_t, uint64_t, const uint32_t*, uint64_t);
    // Returns modules whose kernels need not be watched any more.
    size_t (*rest)(uint64_t*, size_t);
};

namespace {

using u64 = uint64_t;

enum Tag : uint32_t { TOUCHED = 19, BOXES_OF = 20, MAP_OF = 21 };
// In the first word of TOUCHED.
constexpr u64 MORE = 1ull << 63, INCOMPLETE = 1ull << 62, STORES_TENSORS = 1ull << 60, TELLS_LOADS = 1ull << 59;
constexpr u64 RING_WORDS = 1 << 22, KIND_SHIFT = 60;
// The largest number of words of ranges and of boxes (of five words each) in a record.
constexpr size_t RANGE_WORDS = 16000, BOX_WORDS = 15000;

struct Range {
    u64 start, end;  // the kind of access is in the bits of `start` from KIND_SHIFT on
};

// What is known of a kernel. `wait` is the number of its wait for the launches before it; 0: it has none.
struct Kernel {
    uint32_t wait;
    bool stores_tensors, is_watched;
};

// What is known of the launch that a `Launch` on the device serves.
struct Slot {
    u64 number = 0;
    Kernel kernel{};
    std::vector<Range> ranges;
    std::vector<u64> boxes;
};

// What the code of a kernel has: the offset of its first wait for the launches before it (-1: none), and stores of tensors.
struct Code {
    u64 wait_at;
    bool stores_tensors;
};

// What is read of a module: its kernels of which something is to be known, its variables, and whether a kernel may launch others.
struct Module {
    std::unordered_map<std::string, Code> kernels;
    std::vector<std::string> variables;
    bool launches = false, is_patched = false;
};

// The memory on a device for one context.
struct Memory {
    Launch* launches = nullptr;
    Wait* waits = nullptr;
    u64 *ring = nullptr, *taken = nullptr;
    u64 next = 0;
    std::vector<Slot> slots;
    std::vector<uint32_t> free;
    // By number of a graph's node on the device: the launches that have begun, in order.
    std::unordered_map<u64, std::deque<std::pair<u64, Kernel>>> nodes;
    std::unordered_map<CUfunction, Kernel> kernels;
    std::deque<Wait> known_waits{Wait{}};
    std::set<u64> maps;
    bool knows_maps = false;
};

// The library is called by the program's threads until the end, after static objects are gone.
// Calls of the library are made one after the other. What takes records out of the ring waits for none of them: they may wait
// for a kernel, and that for room in the ring.
std::mutex &calling = *new std::mutex, &records = *new std::mutex;
auto& memories = *new std::map<CUcontext, std::unique_ptr<Memory>>;
auto& modules = *new std::map<CUmodule, Module>;
// Variables of modules whose places have not been told.
auto& variables = *new std::vector<std::pair<CUmodule, std::string>>;
auto& only = *new std::vector<std::string>;
auto& problem = *new std::string;
bool has_graphs = false;
Calls calls;
Sanitizer_SubscriberHandle subscriber;
std::atomic<u64> numbers{0}, ended{0};
std::atomic<bool> stop{false};
std::thread* taker;
thread_local std::vector<std::pair<u64, u64>> launched;
// The library calls back for what the probe itself asks of it, too.
thread_local bool is_inside = false;
struct Inside {
    std::lock_guard<std::mutex> guard{calling};
    Inside() { is_inside = true; }
    ~Inside() { is_inside = false; }
};

bool ok(SanitizerResult result, const char* what) {
    if (result == SANITIZER_SUCCESS) return true;
    const char* why = nullptr;
    sanitizerGetResultString(result, &why);
    if (problem.empty()) problem = std::string(what) + ": " + (why ? why : "unknown error");
    return false;
}
#define OK(call) ok(call, #call)

template <class T> bool made(CUcontext context, T** at, size_t bytes, Sanitizer_StreamHandle stream) {
    return OK(sanitizerAlloc(context, reinterpret_cast<void**>(at), bytes)) && OK(sanitizerMemset(*at, 0, bytes, stream));
}
template <class T> bool written(T* to, const T* from, size_t count, Sanitizer_StreamHandle stream) {
    return OK(sanitizerMemcpyHostToDeviceAsync(to, const_cast<T*>(from), sizeof(T) * count, stream));
}

// A function of the driver, which CUDA's runtime loads without making its names known to others.
template <class F> F driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<F>(dlsym(library ? library : RTLD_DEFAULT, name));
}

// Whether this driver lays out tensor maps as the reader of them expects.
bool maps_are_known() {
#if CUDA_VERSION >= 12000
    auto encode = driver<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    CUtensorMap map;
    const cuuint64_t sizes[] = {256, 128, 5, 7, 9}, strides[] = {1024, 0x20000, 0x300000, 0x1500000};
    const cuuint32_t box[] = {32, 2, 3, 2, 4}, steps[] = {1, 2, 3, 4, 5};
    const uint32_t expected[] = {0x12345670, 0x7f, 0x3c0, 0x40, 0x2000, 0x30000,    0x150000, 0,
                                 255,        127,  4,     6,    8,      0x1f004688, 0x03010201};
    return encode &&
           encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 5, reinterpret_cast<void*>(0x7f12345670), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS &&
           memcmp(&map, expected, sizeof expected) == 0;
#else
    return false;
#endif
}

// Takes memory of a context.
std::unique_ptr<Memory> new_memory(CUcontext context, Sanitizer_StreamHandle stream, CUdevice device) {
    auto memory = std::make_unique<Memory>();
    size_t total = 8ull << 30;
    if (auto total_of = driver<CUresult (*)(size_t*, CUdevice)>("cuDeviceTotalMem_v2")) total_of(&total, device);
    uint32_t leaves = 1 << 12;
    while (leaves < 1 << 20 && 2ull * leaves * LEAF_WORDS * 4 <= total / 48) leaves *= 2;
    Arena arena{}, *on_device = nullptr;
    void *ring = nullptr, *taken = nullptr;
    if (!made(context, &arena.entries, sizeof(Entry) * ENTRIES, stream) ||
        !made(context, &arena.leaves, 4ull * leaves * LEAF_WORDS, stream) ||
        !made(context, &arena.extents, sizeof(Extent) * leaves, stream) || !made(context, &arena.free, 4ull * leaves, stream) ||
        !made(context, &memory->waits, sizeof(Wait) * MAX_WAITS, stream) ||
        !made(context, &memory->launches, sizeof(Launch) * (LAUNCHES + GRIDS), stream) ||
        !made(context, &on_device, sizeof(Arena), stream) || !OK(sanitizerAllocHost(context, &ring, RING_WORDS * 8)) ||
        !OK(sanitizerAllocHost(context, &taken, 64)))
        return nullptr;
    memset(ring, 0, RING_WORDS * 8);
    memset(taken, 0, 64);
    memory->ring = static_cast<u64*>(ring);
    memory->taken = static_cast<u64*>(taken);
    arena.ring = static_cast<unsigned long long*>(ring);
    arena.taken = static_cast<unsigned long long*>(taken);
    arena.free_mask = leaves - 1;
    arena.ring_words = arena.may_write_to = RING_WORDS;
    arena.free_given = arena.free_reserved = leaves;
    std::vector<uint32_t> free(leaves);
    for (uint32_t i = 0; i < leaves; i++) free[i] = i + 1;
    std::vector<Launch> launches(LAUNCHES + GRIDS);
    for (uint32_t i = 0; i < launches.size(); i++) {
        Launch& launch = launches[i];
        launch = Launch{};
        launch.entries = arena.entries, launch.leaves = arena.leaves, launch.extents = arena.extents;
        launch.waits = memory->waits, launch.arena = on_device;
        // Far from each other: what a cache still has of a launch must not look like that of another.
        launch.tag = 1 + i * ((1u << TAG_BITS) / (LAUNCHES + GRIDS)), launch.number = i;
    }
    bool all = written(arena.free, free.data(), leaves, stream) &&
               written(memory->launches, launches.data(), launches.size(), stream) && written(on_device, &arena, 1, stream) &&
               OK(sanitizerStreamSynchronize(stream));
    if (!all) return nullptr;
    memory->slots.resize(LAUNCHES + GRIDS);
    for (uint32_t i = 0; i < LAUNCHES; i++) memory->free.push_back(LAUNCHES - 1 - i);
    memory->knows_maps = maps_are_known();
    return memory;
}

// Looks for what has no callback in the code of each kernel of a module: the wait for the launches before it, and stores of
// tensors. An instruction has 16 bytes, and its operation is in the lowest 12 bits (Hopper and Blackwell). And for variables.
Module read(const char* cubin, size_t bytes) {
    constexpr u64 WAIT = 0x82e, STORE = 0x3b5, REDUCE = 0x3b6, NONE = ~0ull, MAX_VARIABLES = 4096;
    constexpr char TEXT[] = ".text.", GLOBAL[] = ".nv.global";
    Module found;
    Elf64_Ehdr header;
    if (!cubin || bytes < sizeof header) return found;
    memcpy(&header, cubin, sizeof header);
    auto section = [&](u64 number, Elf64_Shdr* into) {
        u64 at = header.e_shoff + number * sizeof *into;
        if (memcmp(header.e_ident, ELFMAG, SELFMAG) || at > bytes || bytes - at < sizeof *into) return false;
        memcpy(into, cubin + at, sizeof *into);
        return into->sh_type == SHT_NOBITS || (into->sh_offset <= bytes && into->sh_size <= bytes - into->sh_offset);
    };
    Elf64_Shdr names, code;
    if (!section(header.e_shstrndx, &names) || names.sh_type == SHT_NOBITS) return found;
    auto name_in = [&](const Elf64_Shdr& table, u64 at) {
        if (table.sh_type == SHT_NOBITS || at >= table.sh_size) return std::string();
        const char* start = cubin + table.sh_offset + at;
        return std::string(start, strnlen(start, table.sh_size - at));
    };
    for (u64 number = 0; number < header.e_shnum && section(number, &code); number++) {
        Elf64_Shdr of_names, place;
        if (code.sh_type == SHT_SYMTAB && section(code.sh_link, &of_names)) {
            Elf64_Sym symbol;
            for (u64 at = 0; at + sizeof symbol <= code.sh_size && found.variables.size() < MAX_VARIABLES; at += sizeof symbol) {
                memcpy(&symbol, cubin + code.sh_offset + at, sizeof symbol);
                found.launches |= name_in(of_names, symbol.st_name).find("cnpv2LaunchDevice") != std::string::npos;
                if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || !symbol.st_size || !section(symbol.st_shndx, &place)) continue;
                if (name_in(names, place.sh_name).compare(0, sizeof GLOBAL - 1, GLOBAL)) continue;
                found.variables.push_back(name_in(of_names, symbol.st_name));
            }
        }
        std::string name = name_in(names, code.sh_name);
        if (code.sh_type == SHT_NOBITS || name.compare(0, sizeof TEXT - 1, TEXT)) continue;
        Code has{NONE, false};
        for (u64 at = 0; at + 16 <= code.sh_size; at += 16) {
            u64 word;
            memcpy(&word, cubin + code.sh_offset + at, sizeof word);
            u64 operation = word & 0xfff;
            if (operation == WAIT && has.wait_at == NONE) has.wait_at = at;
            has.stores_tensors |= operation == STORE || operation == REDUCE;
        }
        if (has.wait_at != NONE || has.stores_tensors) found.kernels[name.substr(sizeof TEXT - 1)] = has;
    }
    return found;
}

// Has the kernels of a module say what they access, from their next launches on.
void patch(CUmodule handle, Module& module) {
    if (module.is_patched) return;
    const std::pair<Sanitizer_InstructionId, const char*> patches[] = {
        {SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "sidestream_access"},
        {SANITIZER_INSTRUCTION_MEMCPY_ASYNC, "sidestream_async"},
        {SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, "sidestream_bulk_load"},
        {SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL, "sidestream_bulk_store"},
        {SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL, "sidestream_bulk_reduce"},
#if VERSION >= 133
        {SANITIZER_INSTRUCTION_TMA_LOAD, "sidestream_tensor_load"},
#endif
        {SANITIZER_INSTRUCTION_BLOCK_EXIT, "sidestream_exit"},
    };
    for (auto& [instruction, name] : patches) OK(sanitizerPatchInstructions(instruction, handle, name));
    module.is_patched = OK(sanitizerPatchModule(handle));
}

void module_loaded(const Sanitizer_ResourceModuleData& data) {
    static auto& is_known = *new std::set<CUcontext>;
    if (is_known.insert(data.context).second) OK(sanitizerAddPatchesFromFile(calls.patches, data.context));
    Module& module = modules[data.module] = read(data.pCubin, data.cubinSize);
    patch(data.module, module);
    std::lock_guard<std::mutex> guard{records};
    for (auto& name : module.variables) variables.emplace_back(data.module, name);
}

// Takes the patches out of modules of which is known what their kernels touch: 7 ms each. The nodes of a graph keep the code that
// their kernels had, so where there are graphs all stay.
void rest() {
    u64 known[64];
    size_t count = calls.rest(known, 64);
    for (size_t i = 0; i < count && !has_graphs; i++) {
        auto module = modules.find(reinterpret_cast<CUmodule>(known[i]));
        if (module != modules.end() && module->second.is_patched && OK(sanitizerUnpatchModule(module->first)))
            module->second.is_patched = false;
    }
}

Kernel new_kernel(Memory& memory, const Sanitizer_LaunchData& data) {
    std::string name = data.functionName ? data.functionName : "";
    auto is_named = [&](const std::string& part) { return name.find(part) != std::string::npos; };
    auto& module = modules[data.module];
    Kernel kernel{0, false, only.empty() || std::any_of(only.begin(), only.end(), is_named)};
    // What a kernel launches gets the same data as it, and ends apart from it.
    kernel.is_watched &= !module.launches;
    auto code = module.kernels.find(name);
    if (code == module.kernels.end()) return kernel;
    kernel.stores_tensors = code->second.stores_tensors;
    u64 first = 0, bytes = 0;
    if (code->second.wait_at != ~0ull && memory.known_waits.size() < MAX_WAITS &&
        OK(sanitizerGetFunctionPcAndSize(data.module, name.c_str(), &first, &bytes))) {
        kernel.wait = memory.known_waits.size();
        memory.known_waits.push_back({first, first + code->second.wait_at});
        written(memory.waits + kernel.wait, &memory.known_waits.back(), 1, data.hStream);
    }
    return kernel;
}

// Returns what the patches of a launch get; 0 if there is no place.
u64 numbered(Memory& memory, Kernel kernel, const Sanitizer_LaunchData& data, u64 node, u64 number) {
    std::lock_guard<std::mutex> guard{records};
    u64 wait = (u64)kernel.wait << WAIT_SHIFT;
    if (!node && memory.free.empty()) return ended++, 0;
    launched.emplace_back(node, number);
    if (node) {
        // The nodes of a graph that have the same function get what the last of them is given.
        memory.nodes[data.gridId].emplace_back(number, kernel);
        return reinterpret_cast<u64>(memory.launches + LAUNCHES) | OF_GRAPH | wait;
    }
    uint32_t slot = memory.free.back();
    memory.free.pop_back();
    memory.slots[slot].number = number;
    memory.slots[slot].kernel = kernel;
    return reinterpret_cast<u64>(memory.launches + slot) | wait;
}

// Says what the patches of a launch get; 0: nothing is noted.
void give(const Sanitizer_LaunchData& data, u64 what) {
    OK(sanitizerSetLaunchCallbackData(data.hLaunch, data.function, data.hStream, reinterpret_cast<void*>(what)));
}

// A kernel is launched, by itself or as a node of a graph.
void launch_begins(const Sanitizer_LaunchData& data, u64 node) {
    auto found = memories.find(data.context);
    if (found == memories.end()) {
        auto made = new_memory(data.context, data.hStream, data.device);
        std::lock_guard<std::mutex> guard{records};
        found = memories.emplace(data.context, std::move(made)).first;
    }
    auto& memory = found->second;
    if (!memory) return give(data, 0);
    auto known = memory->kernels.find(data.function);
    if (known == memory->kernels.end()) known = memory->kernels.emplace(data.function, new_kernel(*memory, data)).first;
    if (!known->second.is_watched) return give(data, 0);
    u64 number = ++numbers;
    if (calls.watches && !node) {
        const uint32_t dimensions[] = {data.gridDim_x,  data.gridDim_y,  data.gridDim_z,     data.blockDim_x,   data.blockDim_y,
                                       data.blockDim_z, data.clusterDim_x, data.clusterDim_y, data.clusterDim_z};
        auto module = reinterpret_cast<u64>(data.module), function = reinterpret_cast<u64>(data.function);
        if (!calls.watches(module, function, dimensions, number)) {
            launched.emplace_back(0, number);
            ended++;
            return give(data, 0);
        }
        patch(data.module, modules[data.module]);
    }
    give(data, numbered(*memory, known->second, data, node, number));
}

// Writes what a launch has touched, and makes its place free.
void launch_ended(Memory& memory, uint32_t at, bool is_lost, u64 grid) {
    Slot slot;
    std::swap(slot, memory.slots[at]);
    if (at < LAUNCHES) {
        memory.free.push_back(at);
    } else {
        auto& begun = memory.nodes[grid];
        if (begun.empty()) return;
        std::tie(slot.number, slot.kernel) = begun.front();
        begun.pop_front();
    }
    for (size_t i = 0; i < slot.boxes.size(); i += BOX_WORDS) {
        std::vector<u64> record{slot.number};
        record.insert(record.end(), slot.boxes.begin() + i, slot.boxes.begin() + std::min(i + BOX_WORDS, slot.boxes.size()));
        calls.write(BOXES_OF, record.data(), record.size());
    }
    // A kernel that does not wait is early as a whole, if it is launched so.
    u64 early = slot.kernel.wait ? 0 : (u64)EARLY << KIND_SHIFT;
    auto& ranges = slot.ranges;
    std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.start < b.start; });
    std::vector<u64> words{0};
    for (size_t i = 0; i < ranges.size();) {
        u64 kind = ranges[i].start >> KIND_SHIFT << KIND_SHIFT, start = ranges[i].start, end = ranges[i].end;
        while (++i < ranges.size() && ranges[i].start <= (kind | end)) end = std::max(end, ranges[i].end);
        words.push_back(start | early);
        words.push_back(end);
        if (words.size() > RANGE_WORDS) {
            words[0] = slot.number | MORE;
            calls.write(TOUCHED, words.data(), words.size());
            words.resize(1);
        }
    }
    words[0] = slot.number | (is_lost ? INCOMPLETE : 0) | (slot.kernel.stores_tensors ? STORES_TENSORS : 0);
    if (VERSION >= 133 && memory.knows_maps) words[0] |= TELLS_LOADS;
    calls.write(TOUCHED, words.data(), words.size());
    ended++;
}

// Adds the runs of bytes of a page.
void add_bits(std::vector<Range>& ranges, u64 page, const u64* bits) {
    u64 from = 0;
    bool is_inside = false;
    for (u64 at = 0; at < LEAF_WORDS / 2; at++) {
        u64 word = bits[at];
        if (word == (is_inside ? ~0ull : 0)) continue;
        for (u64 bit = 0; bit < 64; bit++)
            if ((word >> bit & 1) != is_inside) {
                if (is_inside) ranges.push_back({page + from, (page & ~(15ull << 60)) + at * 64 + bit});
                from = at * 64 + bit;
                is_inside = !is_inside;
            }
    }
    if (is_inside) ranges.push_back({page + from, (page & ~(15ull << 60)) + (1ull << PAGE_BITS)});
}

// Takes what kernels have written into the ring. Returns whether there was anything.
bool take(Memory& memory) {
    bool is_new = false;
    for (int count = 0; count < 4096; count++) {
        u64* at = &memory.ring[memory.next & (RING_WORDS - 1)];
        u64 head = *static_cast<volatile u64*>(at);
        if (head == 0) break;
        std::atomic_thread_fence(std::memory_order_acquire);
        bool is_run = head >> 56 == RUN;
        u64 words = is_run ? 2 : head >> 32 & 0xffffff;
        uint32_t place = (uint32_t)(is_run ? head >> 40 & 0xffff : head) % (LAUNCHES + GRIDS);
        const u64* body = at + 1;
        u64 second = is_run || head >> 56 == END ? *static_cast<const volatile u64*>(body) : 1;
        if (second == 0) break;
        Slot& slot = memory.slots[place];
        switch (head >> 56) {
        case RUN: {
            u64 page = (head & 0xffffffff) << PAGE_BITS, kind = (head >> 32 & 7) << KIND_SHIFT;
            slot.ranges.push_back({(page + (second >> 16 & 0xffff)) | kind, page + (second & 0xffff) + 1});
            break;
        }
        case BITS: add_bits(slot.ranges, body[0], body + 1); break;
        case MAP:
            if (memory.knows_maps && memory.maps.insert(body[0]).second) calls.write(MAP_OF, body, 17);
            break;
        case BOX: slot.boxes.insert(slot.boxes.end(), body, body + 5); break;
        case END: launch_ended(memory, place, second >> 62 & 1, second & ~(3ull << 62)); break;
        default: break;
        }
        // The beginning of a record must be zero until it is complete.
        memset(at, 0, words * 8);
        std::atomic_thread_fence(std::memory_order_release);
        memory.next += words;
        *static_cast<volatile u64*>(memory.taken) = memory.next;
        is_new = true;
    }
    return is_new;
}

bool take_all() {
    std::lock_guard<std::mutex> guard{records};
    bool is_new = false;
    for (auto& [context, memory] : memories)
        if (memory) is_new |= take(*memory);
    return is_new;
}

void keep_taking() {
    while (!stop)
        if (!take_all()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void heard(void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    if (is_inside) return;
    if (domain == SANITIZER_CB_DOMAIN_DRIVER_API || domain == SANITIZER_CB_DOMAIN_RUNTIME_API)
        return calls.heard(nullptr, domain, id, data);
    Inside inside;
    if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
        module_loaded(*static_cast<const Sanitizer_ResourceModuleData*>(data));
    } else if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING) {
        auto& module = *static_cast<const Sanitizer_ResourceModuleData*>(data);
        modules.erase(module.module);
        {
            std::lock_guard<std::mutex> guard{records};
            auto is_gone = [&](auto& variable) { return variable.first == module.module; };
            variables.erase(std::remove_if(variables.begin(), variables.end(), is_gone), variables.end());
        }
        // The handles of its functions may be given again.
        auto memory = memories.find(module.context);
        if (memory != memories.end() && memory->second) memory->second->kernels.clear();
    } else if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING) {
        std::lock_guard<std::mutex> guard{records};
        memories.erase(static_cast<const Sanitizer_ResourceContextData*>(data)->context);
    } else if (domain == SANITIZER_CB_DOMAIN_LAUNCH && id == SANITIZER_CBID_LAUNCH_BEGIN) {
        launch_begins(*static_cast<const Sanitizer_LaunchData*>(data), 0);
    } else if (domain == SANITIZER_CB_DOMAIN_GRAPHS && id == SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATING) {
        has_graphs = true;
        for (auto& [handle, module] : modules) patch(handle, module);
    } else if (domain == SANITIZER_CB_DOMAIN_GRAPHS && id == SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN) {
        auto& node = *static_cast<const Sanitizer_GraphNodeLaunchData*>(data);
        // What is only uploaded may be launched from the device, by calls that are not heard.
        if (node.nodeType == CU_GRAPH_NODE_TYPE_KERNEL && node.isGraphUpload) give(node.launchData, 0);
        else if (node.nodeType == CU_GRAPH_NODE_TYPE_KERNEL) launch_begins(node.launchData, reinterpret_cast<u64>(node.node));
    }
}

}  // namespace

extern "C" {

// Begins to listen. Returns null, or why not.
const char* sidestream_exact_begin(const Calls* given) {
    calls = *given;
    std::istringstream names(calls.only ? calls.only : "");
    for (std::string name; std::getline(names, name);)
        if (!name.empty()) only.push_back(name);
    if (!OK(sanitizerSubscribe(&subscriber, heard, nullptr))) return problem.c_str();
    for (auto domain : {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CB_DOMAIN_GRAPHS})
        if (!OK(sanitizerEnableDomain(1, subscriber, domain))) return problem.c_str();
    for (uint32_t i = 0; i < calls.ids_len; i++) {
        constexpr uint32_t RUNTIME = 4096;
        bool of_runtime = calls.ids[i] >= RUNTIME;
        auto domain = of_runtime ? SANITIZER_CB_DOMAIN_RUNTIME_API : SANITIZER_CB_DOMAIN_DRIVER_API;
        // A call that this library does not know is not heard.
        sanitizerEnableCallback(1, subscriber, domain, calls.ids[i] - (of_runtime ? RUNTIME : 0));
    }
    taker = new std::thread(keep_taking);
    return nullptr;
}

// Takes what this thread has launched since it was last asked: the node of a graph or 0, and the number of the launch.
size_t sidestream_exact_launched(uint64_t* pairs, size_t room) {
    size_t count = std::min(room, launched.size());
    for (size_t i = 0; i < count; i++) std::tie(pairs[2 * i], pairs[2 * i + 1]) = launched[i];
    launched.erase(launched.begin(), launched.begin() + count);
    return count;
}

// Takes the places of variables that no call has named: the address and the size. The driver may be asked only here.
size_t sidestream_exact_variables(uint64_t* pairs, size_t room) {
    static auto place_of = driver<CUresult (*)(CUdeviceptr*, size_t*, CUmodule, const char*)>("cuModuleGetGlobal_v2");
    std::vector<std::pair<CUmodule, std::string>> some;
    {
        std::lock_guard<std::mutex> guard{records};
        size_t count = std::min(room, variables.size());
        some.assign(variables.end() - count, variables.end());
        variables.resize(variables.size() - count);
    }
    if (some.empty()) return 0;
    // What another thread captures is not disturbed.
    static auto exchange = driver<CUresult (*)(CUstreamCaptureMode*)>("cuThreadExchangeStreamCaptureMode");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (exchange) exchange(&mode);
    size_t count = 0;
    for (auto& [module, name] : some) {
        CUdeviceptr at = 0;
        size_t bytes = 0;
        if (!place_of || place_of(&at, &bytes, module, name.c_str()) != CUDA_SUCCESS) continue;
        pairs[2 * count] = at;
        pairs[2 * count++ + 1] = bytes;
    }
    if (exchange) exchange(&mode);
    return count;
}

// Passes on what launches have said that are complete: this thread has waited for some.
void sidestream_exact_pass() {
    take_all();
    if (!calls.watches) return;
    Inside inside;
    rest();
}

// Waits at most so long for launches that still run, and ends.
void sidestream_exact_end(uint32_t milliseconds) {
    for (uint32_t waited = 0; waited < milliseconds && ended < numbers; waited++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = true;
    if (taker) taker->join();
}

}
