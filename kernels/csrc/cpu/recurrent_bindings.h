// Recurrent layers in a Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace octavo {

void add_recurrent(pybind11::module_& m);

}  // namespace octavo
