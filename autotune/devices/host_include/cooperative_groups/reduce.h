// The host device's cooperative_groups/reduce.h: reduce is declared with the groups.
#pragma once
#include "../cooperative_groups.h"
