// The records of messages as numpy types.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>

#include "messages.h"

namespace octavo {

template <class T>
constexpr const char* kFormat = nullptr;
template <>
inline constexpr const char* kFormat<int32_t> = "<i4";
template <>
inline constexpr const char* kFormat<float> = "<f4";

struct Field {
  const char *name, *format;
  size_t offset;
};
#define OCTAVO_FIELD(record, name) \
  Field { #name, kFormat<decltype(record::name)>, offsetof(record, name) }

inline pybind11::dtype layout(std::initializer_list<Field> fields, size_t bytes) {
  pybind11::list names, formats, offsets;
  for (const Field& field : fields)
    names.append(field.name), formats.append(pybind11::dtype(field.format)), offsets.append(field.offset);
  return {names, formats, offsets, pybind11::ssize_t(bytes)};
}

inline void add_layouts(pybind11::module_& m) {
#define F OCTAVO_FIELD
  m.attr("STEP_HEADER") = layout({F(StepHeader, sequences), F(StepHeader, tokens), F(StepHeader, samples),
                                  F(StepHeader, sequence_at), F(StepHeader, token_at), F(StepHeader, sample_at)},
                                 sizeof(StepHeader));
  m.attr("STEP_SEQUENCE") =
      layout({F(StepSequence, row), F(StepSequence, context), F(StepSequence, query_start), F(StepSequence, queries),
              F(StepSequence, first_block), F(StepSequence, blocks), F(StepSequence, block_at), F(StepSequence, group),
              F(StepSequence, prefix), F(StepSequence, row_context)},
             sizeof(StepSequence));
  m.attr("STEP_SAMPLE") =
      layout({Field{"seed", "<i8", offsetof(StepSample, seed_low)}, F(StepSample, row), F(StepSample, index),
              F(StepSample, position), F(StepSample, temperature), F(StepSample, top_k), F(StepSample, top_p),
              F(StepSample, min_p)},
             sizeof(StepSample));
  m.attr("STEP_MOVE") = layout({F(StepMove, read), F(StepMove, write), F(StepMove, first_keep), F(StepMove, keeps)},
                               sizeof(StepMove));
  m.attr("STEP_KEEP") = layout({F(StepKeep, after), F(StepKeep, slot)}, sizeof(StepKeep));
  m.attr("ADJUST_ROW") = layout({F(AdjustRow, first), F(AdjustRow, entries), F(AdjustRow, repetition),
                                 F(AdjustRow, presence), F(AdjustRow, frequency), F(AdjustRow, masked)},
                                sizeof(AdjustRow));
  m.attr("ADJUST_ENTRY") = layout({F(AdjustEntry, token), F(AdjustEntry, bias), F(AdjustEntry, count), F(AdjustEntry, flags)},
                                  sizeof(AdjustEntry));
#undef F
  m.attr("SEEN") = kSeen;
  m.attr("FORBIDDEN") = kForbidden;
}
#undef OCTAVO_FIELD

}  // namespace octavo
