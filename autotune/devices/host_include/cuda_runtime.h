// The host device's cuda_runtime.h: what a kernel sees of it.
#pragma once
#include "autotune_host.h"
