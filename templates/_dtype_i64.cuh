#pragma once

using T = long long;  // elements in memory
