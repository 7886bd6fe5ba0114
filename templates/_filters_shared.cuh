#pragma once

// Filters that the family stages in shared memory.
