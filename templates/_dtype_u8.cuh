#pragma once

using T = unsigned char;  // elements in memory
