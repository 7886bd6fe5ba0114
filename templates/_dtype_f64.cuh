#pragma once

using T = double;  // elements in memory
