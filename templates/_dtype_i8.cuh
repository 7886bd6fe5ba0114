#pragma once

using T = signed char;  // elements in memory
