#pragma once

using T = int;  // elements in memory
