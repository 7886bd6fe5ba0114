// A standard or CUDA header that a kernel may name; its part of it is always there.
#pragma once
#include "autotune_host.h"
