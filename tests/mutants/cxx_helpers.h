// Included before everything else if the agent is built with its mutants
// (tests/mutants/cxx_build.py). Each mutant is a number; only the one in the variable MUTANT is
// active.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace mutants {

inline const char* Variable(const char* name) { return std::getenv(name); }
inline const int awake = Variable("MUTANT") != nullptr ? std::atoi(Variable("MUTANT")) : 0;
// Gets a line for each mutant when it is first reached; "!" before the number: it makes no sense
// for its types.
inline const int reached =
    Variable("MUTANTS_REACHED") != nullptr
        ? open(Variable("MUTANTS_REACHED"), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)
        : -1;

inline void Note(int id, const char* how) {
  static std::atomic<bool> noted[1 << 16];
  if (!noted[id].exchange(true)) dprintf(reached, "%s%d\n", how, id);
}

constexpr bool Awake(int id) {
  if (std::is_constant_evaluated()) return false;
  if (reached >= 0) Note(id, "");
  return awake == id;
}

constexpr void Senseless(int id) {
  if (!std::is_constant_evaluated() && reached >= 0) Note(id, "!");
}

template <typename A, typename B>
constexpr bool Less(int id, const A& a, const B& b) {
  return Awake(id) ? a <= b : a < b;
}

template <typename A, typename B>
constexpr bool AtMost(int id, const A& a, const B& b) {
  return Awake(id) ? a < b : a <= b;
}

template <typename A, typename B>
constexpr bool More(int id, const A& a, const B& b) {
  return Awake(id) ? a >= b : a > b;
}

template <typename A, typename B>
constexpr bool AtLeast(int id, const A& a, const B& b) {
  return Awake(id) ? a > b : a >= b;
}

template <typename A, typename B>
constexpr bool Equal(int id, const A& a, const B& b) {
  return (a == b) != Awake(id);
}

template <typename A, typename B>
constexpr bool Differ(int id, const A& a, const B& b) {
  return (a != b) != Awake(id);
}

constexpr bool Negate(int id, bool a) { return a != Awake(id); }

template <typename A, typename B>
constexpr auto Add(int id, A&& a, B&& b) {
  using Sum = decltype(std::forward<A>(a) + std::forward<B>(b));
  if constexpr (requires { static_cast<Sum>(a - b); }) {
    if (Awake(id)) return static_cast<Sum>(a - b);
  } else {
    Senseless(id);
  }
  return std::forward<A>(a) + std::forward<B>(b);
}

template <typename A, typename B>
constexpr auto Subtract(int id, A&& a, B&& b) {
  using Difference = decltype(a - b);
  if constexpr (requires { static_cast<Difference>(a + b); }) {
    if (Awake(id)) return static_cast<Difference>(a + b);
  } else {
    Senseless(id);
  }
  return a - b;
}

// The operand of += and -=, or its negation. An operand of less than 64 bits is widened, so that
// the negated sum is the same.
template <typename T>
constexpr decltype(auto) Sign(int id, T&& a) {
  if constexpr (std::is_arithmetic_v<std::remove_cvref_t<T>>) {
    using Wide = std::conditional_t<(std::is_integral_v<std::remove_cvref_t<T>> &&
                                     sizeof(a) < sizeof(int64_t)),
                                    int64_t, std::remove_cvref_t<T>>;
    const auto wide = static_cast<Wide>(a);
    return Awake(id) ? static_cast<Wide>(-wide) : wide;
  } else {
    Senseless(id);
    return std::forward<T>(a);
  }
}

template <typename T>
constexpr auto Value(int id, T&& a) {
  return Awake(id) ? std::decay_t<T>{} : std::decay_t<T>(std::forward<T>(a));
}

template <typename T>
const T& Reference(int id, const T& a) {
  static const T nothing{};
  return Awake(id) ? nothing : a;
}

}  // namespace mutants
