#pragma once
#include "_dtype_bf16.cuh"

#include "_ptx_mma.cuh"

#include "_words_16.cuh"
