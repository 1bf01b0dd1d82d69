#pragma once

#include "hip/runtime.h"
