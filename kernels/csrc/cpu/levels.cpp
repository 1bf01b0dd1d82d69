#include "levels.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if OCTAVO_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

struct Level {
  const char* name;
  const Kernels* kernels;
  bool available;
};

#if OCTAVO_X86
// Tile registers exist (cpuid 7, EDX bits 22, 24 and 25) and Linux lets this process use them: it wants to be asked, because
// they enlarge the signal frame.
bool amx_granted() {
  constexpr unsigned tiles = 1u << 24, int8 = 1u << 25, bf16 = 1u << 22, all = tiles | int8 | bf16;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & all) != all) return false;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

// The compiler's run-time check covers both the processor and the operating system's saving of the registers.
const std::vector<Level>& all_levels() {
#if OCTAVO_X86
  __builtin_cpu_init();
  static const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512vl");
  static const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  static const std::vector<Level> levels = {
      {"baseline", &baseline_kernels, true},
      {"avx2", &avx2_kernels, avx2},
      {"avx2_vnni", &avx2_vnni_kernels, avx2 && __builtin_cpu_supports("avxvnni")},
      {"avx512", &avx512_kernels, avx512},
      {"avx512_bf16", &avx512_bf16_kernels, bf16},
      {"amx", &amx_kernels, bf16 && __builtin_cpu_supports("avx512vbmi") && amx_granted()},
  };
#else
  static const std::vector<Level> levels = {{"baseline", &baseline_kernels, true}};
#endif
  return levels;
}

const Level& find(const std::string& name) {
  std::string known;
  for (const Level& l : all_levels()) {
    if (l.available && name == l.name) return l;
    if (l.available) known += (known.empty() ? "" : ", ") + std::string(l.name);
  }
  throw std::invalid_argument("instruction-set level '" + name + "' is not available here; choose one of: " + known);
}

std::atomic<const Level*>& current() {
  static std::atomic<const Level*> level = [] {
    if (const char* name = std::getenv("OCTAVO_CPU_LEVEL")) return &find(name);
    const Level* best = nullptr;
    for (const Level& l : all_levels())
      if (l.available) best = &l;
    return best;
  }();
  return level;
}

}  // namespace

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const Level& l : all_levels())
    if (l.available) names.push_back(l.name);
  return names;
}
std::string level() { return current().load()->name; }
void set_level(const std::string& name) { current().store(&find(name)); }
const Kernels& kernels() { return *current().load()->kernels; }

}  // namespace octavo
