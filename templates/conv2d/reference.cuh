#pragma once
#include "_convolution.cuh"
