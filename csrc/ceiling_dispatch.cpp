// Finds the ceilings that go with kernels chosen by name.
#include "ceilings.h"
#include "kernels.h"

#include <cstring>

namespace kvist {
namespace portable {
const Ceilings& ceilings();
}
#if defined(__x86_64__)
namespace avx2 {
const Ceilings& ceilings();
}
namespace avx512 {
const Ceilings& ceilings();
}
namespace amx {
const Ceilings& ceilings();
}
#endif

const Ceilings* find_ceilings(const char* name) {
    if (!find_kernels(name)) return nullptr;
#if defined(__x86_64__)
    if (!std::strcmp(name, "avx2")) return &avx2::ceilings();
    if (!std::strcmp(name, "avx512")) return &avx512::ceilings();
    if (!std::strcmp(name, "amx")) return &amx::ceilings();
#endif
    return &portable::ceilings();
}

}  // namespace kvist
