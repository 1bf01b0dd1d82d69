// Which instruction sets this machine offers, and the kernels in use.
#pragma once

#include <string>
#include <vector>

#include "args.h"

namespace octavo {

std::vector<std::string> levels();       // from the plainest to the best this machine runs
std::string level();                     // the one in use
void set_level(const std::string& name);  // throws std::invalid_argument
const Kernels& kernels();

}  // namespace octavo
