// Chooses kernels by what the processor can do, at run time.
#include "kernels.h"

#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace kvist {
namespace portable {
const Kernels& table();
}
namespace amx_plain {
const Kernels& table();
}
#if defined(__x86_64__)
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
namespace amx {
const Kernels& table();
}

namespace {

// The system must grant a process the use of the matrix unit's registers; asked for once.
bool may_use_amx() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    unsigned a = 0, b = 0, c = 0, d = 0;
    __cpuid_count(7, 0, a, b, c, d);
    const auto has = [&](int bit) { return d >> bit & 1; };
    return granted && has(22) && has(23) && has(24) && has(25);  // AMX-BF16, AVX512-FP16, AMX-TILE, AMX-INT8
#else
    return false;
#endif
}

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace
#endif

const Kernels* find_kernels(const char* name) {
    if (!std::strcmp(name, "portable")) return &portable::table();
    if (!std::strcmp(name, "amx_plain")) return &amx_plain::table();
#if defined(__x86_64__)
    if (!std::strcmp(name, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        return &avx2::table();
    if (!std::strcmp(name, "avx512") && has_avx512()) return &avx512::table();
    if (!std::strcmp(name, "amx") && has_avx512() && __builtin_cpu_supports("avx512bf16") && may_use_amx())
        return &amx::table();
#endif
    return nullptr;
}

const char* plain_twin(const char* name) { return std::strcmp(name, "amx") ? "portable" : "amx_plain"; }

std::vector<const char*> kernel_names() {
    std::vector<const char*> names;
    for (const char* name : {"amx", "avx512", "avx2", "portable"})
        if (find_kernels(name)) names.push_back(name);
    return names;
}

const Kernels& best_kernels() { return *find_kernels(kernel_names().front()); }

}  // namespace kvist
