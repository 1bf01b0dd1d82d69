#pragma once

#include "hip/device.h"
