// libstdc++'s std::abs, which <algorithm>, <cstdlib> and others include: those of autotune_host_math.h, where a second
// declaration of each would clash.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <stdlib.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
namespace std {
using ::abs;
}
