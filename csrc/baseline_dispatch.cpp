// Finds the baselines that go with kernels chosen by name.
#include "baselines.h"
#include "kernels.h"

#include <cstring>

namespace kvist {
namespace portable {
const Baselines& baselines();
}
#if defined(__x86_64__)
namespace avx2 {
const Baselines& baselines();
}
namespace avx512 {
const Baselines& baselines();
}
namespace amx {
const Baselines& baselines();
}
#endif

const Baselines* find_baselines(const char* name) {
    if (!find_kernels(name)) return nullptr;
#if defined(__x86_64__)
    if (!std::strcmp(name, "avx2")) return &avx2::baselines();
    if (!std::strcmp(name, "avx512")) return &avx512::baselines();
    if (!std::strcmp(name, "amx")) return &amx::baselines();
#endif
    return &portable::baselines();
}

}  // namespace kvist
