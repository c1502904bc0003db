#include "agent/kv/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

namespace tangram::kv {
namespace {

using Wide = unsigned __int128;  // products of unchecked counts and strides

// A longer run is split: its length has 32 bits on the wire.
constexpr uint64_t kLongestRun = uint64_t{1} << 30;
// Copies that are folded together: memory does not grow with further copies.
constexpr size_t kFoldedAtOnce = 4096;

uint64_t BytesOf(Element element) {
  switch (element) {
    case Element::kF32:
      return 4;
    case Element::kF16:
    case Element::kBf16:
      return 2;
    case Element::kFp8E4m3:
    case Element::kFp8E5m2:
      return 1;
  }
  return 0;
}

uint64_t KeyBytes(const Format& f) { return f.key_width * BytesOf(f.element); }
uint64_t ValueBytes(const Format& f) { return f.value_width * BytesOf(f.element); }

Status Bad(const std::string& why) { return {Code::kInvalid, "KV format: " + why}; }

// A dimension of a format. The value dimension goes from K to V.
struct Dimension {
  const char* name;
  uint64_t count, stride;
  bool value = false;
};

Status CheckCounts(const Format& f) {
  if (f.layers == 0 || f.blocks == 0 || f.heads == 0 || f.block_tokens == 0) {
    return Bad(fmt::format("{} layers, {} blocks, {} heads, {} tokens a block: none may be 0",
                           f.layers, f.blocks, f.heads, f.block_tokens));
  }
  if (Wide{f.layers} * f.blocks * f.heads > std::numeric_limits<uint32_t>::max()) {
    return Bad(fmt::format("{} layers x {} blocks x {} heads are more pages than 32 bits count",
                           f.layers, f.blocks, f.heads));
  }
  if (BytesOf(f.element) == 0) {
    return Bad(fmt::format("element {} is unknown", static_cast<uint32_t>(f.element)));
  }
  if (f.key_width == 0) return Bad("key_width is 0");
  if (f.value_width == 0 && f.value_offset != 0) {
    return Bad(fmt::format("value_offset is {}, but value_width is 0", f.value_offset));
  }
  if (f.whole_page_bytes != 0 && (f.token_stride != 0 || f.value_offset != 0)) {
    return Bad("whole_page_bytes leaves no meaning to token_stride and value_offset: want 0");
  }
  const Wide filled = (KeyBytes(f) + ValueBytes(f)) * Wide{f.block_tokens};
  if (f.whole_page_bytes != 0 && f.whole_page_bytes < filled) {
    return Bad(fmt::format("whole_page_bytes is {}, K and V of a block take {}", f.whole_page_bytes,
                           static_cast<uint64_t>(filled)));
  }
  return OkStatus();
}

}  // namespace

Format PoolOf(const Shape& shape, Element element, uint32_t pages) {
  Format out;
  out.blocks = pages;
  out.block_tokens = shape.block_tokens;
  out.element = element;
  const uint64_t row = shape.head_token_bytes / 2;
  out.key_width = out.value_width = static_cast<uint32_t>(row / BytesOf(element));
  out.token_stride = row;
  out.value_offset = row * shape.block_tokens;
  out.block_stride = 2 * out.value_offset;
  return out;
}

Format LatentPoolOf(const Shape& shape, Element element, uint32_t pages) {
  Format out;
  out.blocks = pages;
  out.block_tokens = shape.block_tokens;
  out.element = element;
  out.key_width = static_cast<uint32_t>(shape.head_token_bytes / BytesOf(element));
  out.token_stride = shape.head_token_bytes;
  out.block_stride = out.token_stride * shape.block_tokens;
  return out;
}

Status CheckFormat(const Format& f, uint64_t region_bytes) {
  TANGRAM_RETURN_IF_ERROR(CheckCounts(f));
  std::vector<Dimension> dimensions = {{"head_stride", f.heads, f.head_stride},
                                       {"block_stride", f.blocks, f.block_stride},
                                       {"layer_stride", f.layers, f.layer_stride}};
  if (f.whole_page_bytes == 0) {
    dimensions.push_back({"token_stride", f.block_tokens, f.token_stride});
    if (f.value_width > 0) dimensions.push_back({"value_offset", 2, f.value_offset, true});
  }
  // From the innermost out, each stride must cover the extent inside it. Until the value dimension
  // there are two such boxes, of K's rows and of V's.
  std::stable_sort(dimensions.begin(), dimensions.end(),
                   [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  Wide key = f.whole_page_bytes != 0 ? f.whole_page_bytes : KeyBytes(f);
  Wide value = f.whole_page_bytes != 0 ? 0 : ValueBytes(f);
  for (const Dimension& d : dimensions) {
    if (d.count == 1) continue;
    const Wide inner = d.value ? key : std::max(key, value);
    if (d.stride < inner) {
      return Bad(fmt::format("{} is {}, but {} bytes lie before the next one: they would overlap",
                             d.name, d.stride, static_cast<uint64_t>(inner)));
    }
    const Wide reach = (d.count - 1) * Wide{d.stride};
    if (reach > region_bytes) {
      return Bad(fmt::format("{} {} apart ({}) do not fit into the region of {} bytes", d.count,
                             d.stride, d.name, region_bytes));
    }
    if (d.value) {
      key = reach + value;  // from here on V reaches no further than this
    } else {
      key += reach;
      if (value != 0) value += reach;
    }
  }
  if (f.offset > region_bytes || key > region_bytes - f.offset) {
    return Bad(fmt::format("it reaches {} bytes from offset {} on, the region has {}",
                           static_cast<uint64_t>(key), f.offset, region_bytes));
  }
  return OkStatus();
}

namespace {

struct Loop {
  // Strides, modulo 2^64: blocks may be in falling order.
  uint64_t count = 1, source = 0, target = 0;
  bool operator==(const Loop&) const = default;
};

// `run` bytes at every place of the loops.
struct Box {
  uint32_t source_rank = 0;
  uint64_t source = 0, target = 0, run = 0;
  std::array<Loop, 6> loops;  // layers, V, positions, then folded ones
  size_t used = 0;

  void Add(const Loop& loop) {
    if (loop.count > 1) loops[used++] = loop;
  }
  // Equal except for the start.
  bool Like(const Box& other) const {
    return source_rank == other.source_rank && run == other.run && used == other.used &&
           std::equal(loops.begin(), loops.begin() + static_cast<ptrdiff_t>(used),
                      other.loops.begin());
  }
};

// Merges boxes that are alike and equally far apart into one with one more loop.
void Fold(std::vector<Box>* boxes) {
  size_t out = 0;
  for (size_t i = 0; i < boxes->size();) {
    Box first = (*boxes)[i];
    Loop loop;
    for (++i; i < boxes->size() && first.Like((*boxes)[i]); ++i, ++loop.count) {
      const Box &next = (*boxes)[i], &before = (*boxes)[i - 1];
      const uint64_t source = next.source - before.source, target = next.target - before.target;
      if (loop.count > 1 && (source != loop.source || target != loop.target)) break;
      loop.source = source;
      loop.target = target;
    }
    first.Add(loop);
    (*boxes)[out++] = first;
  }
  boxes->resize(out);
}

// Merges loops whose turns are adjacent on both sides into the run; sorts the others from the
// smallest stride to the largest.
void Collapse(Box* box) {
  const auto begin = box->loops.begin();
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < box->used; ++i) {
      const Loop loop = box->loops[i];
      if (loop.source != box->run || loop.target != box->run) continue;
      box->run *= loop.count;
      box->loops[i] = box->loops[--box->used];
      again = true;
      break;
    }
  }
  std::sort(begin, begin + static_cast<ptrdiff_t>(box->used),
            [](const Loop& a, const Loop& b) { return a.source > b.source; });
}

// Emits runs, with adjacent ones merged.
class Teller {
 public:
  explicit Teller(const std::function<Status(const ByteMove&)>& tell) : tell_(tell) {}

  Status Tell(const Box& box) { return Turn(box, 0, box.source, box.target); }
  Status Flush() {
    for (uint64_t at = 0; at < length_; at += kLongestRun) {
      const auto part = static_cast<uint32_t>(std::min(length_ - at, kLongestRun));
      TANGRAM_RETURN_IF_ERROR(tell_({rank_, source_ + at, target_ + at, part}));
    }
    length_ = 0;
    return OkStatus();
  }

 private:
  Status Turn(const Box& box, size_t loop, uint64_t source, uint64_t target) {
    if (loop < box.used) {
      const Loop& l = box.loops[loop];
      for (uint64_t i = 0; i < l.count; ++i) {
        TANGRAM_RETURN_IF_ERROR(Turn(box, loop + 1, source + i * l.source, target + i * l.target));
      }
      return OkStatus();
    }
    const bool next = length_ > 0 && rank_ == box.source_rank && source_ + length_ == source &&
                      target_ + length_ == target;
    if (!next) {
      TANGRAM_RETURN_IF_ERROR(Flush());
      rank_ = box.source_rank;
      source_ = source;
      target_ = target;
    }
    length_ += box.run;
    return OkStatus();
  }

  const std::function<Status(const ByteMove&)>& tell_;
  uint32_t rank_ = 0;
  uint64_t source_ = 0, target_ = 0, length_ = 0;
};

// The places of some pages of a format.
struct Line {
  uint64_t first = 0, stride = 0;
};

Result<Line> LineOf(const Format& f, uint32_t page, uint32_t stride, uint32_t pages,
                    const char* side) {
  const uint64_t last = page + (pages - 1) * uint64_t{stride};
  if (last >= f.pages()) {
    return Bad(fmt::format("{} page {} of a copy is not one of {}", side, last, f.pages()));
  }
  Line out;
  const uint64_t head = page % f.heads, block = page / f.heads % f.blocks;
  const uint64_t layer = page / f.heads / f.blocks;
  out.first = f.offset + layer * f.layer_stride + block * f.block_stride + head * f.head_stride;
  if (pages == 1) return out;
  const uint64_t of_layer = uint64_t{f.blocks} * f.heads;
  if (stride > 0 && f.layers == 1 && f.heads == 1) {
    out.stride = f.block_stride * stride;
  } else if (stride > 0 && stride % of_layer == 0) {
    out.stride = f.layer_stride * (stride / of_layer);
  } else {
    return Bad(fmt::format("{} pages of a copy are {} apart, those of the next layer are {}", side,
                           stride, of_layer));
  }
  return out;
}

Status CheckAlike(const Format& a, const Format& b) {
  if (a.block_tokens == b.block_tokens && a.element == b.element && a.key_width == b.key_width &&
      a.value_width == b.value_width && a.whole_page_bytes == b.whole_page_bytes) {
    return OkStatus();
  }
  const auto text = [](const Format& f) {
    return fmt::format("{} tokens a block, element {}, rows of {} and {}, whole pages of {}",
                       f.block_tokens, static_cast<uint32_t>(f.element), f.key_width, f.value_width,
                       f.whole_page_bytes);
  };
  return Bad("source has " + text(a) + "; target has " + text(b));
}

// The boxes of copies. Rows of V with the length of those of K are in `of_key`.
struct Boxes {
  std::vector<Box> of_key, of_value;
};

class Boxer {
 public:
  Boxer(const Format& source, const Format& target) : source_(source), target_(target) {}

  Status Add(const PageCopy& copy, Boxes* out) const {
    if (copy.tokens > source_.block_tokens) {
      return Bad(
          fmt::format("a copy of {} tokens, a block has {}", copy.tokens, source_.block_tokens));
    }
    if (copy.tokens == 0 || copy.pages == 0) return OkStatus();
    const auto from = LineOf(source_, copy.source_page, copy.source_stride, copy.pages, "source");
    if (!from.ok()) return from.status();
    const auto to = LineOf(target_, copy.target_page, copy.target_stride, copy.pages, "target");
    if (!to.ok()) return to.status();
    Box box;
    box.source_rank = copy.source_rank;
    box.source = from->first;
    box.target = to->first;
    box.Add({copy.pages, from->stride, to->stride});
    if (source_.whole_page_bytes != 0) {
      box.run = source_.whole_page_bytes;
      out->of_key.push_back(box);
      return OkStatus();
    }
    const uint64_t key = KeyBytes(source_), value = ValueBytes(source_);
    box.run = key;
    const bool joined = value > 0 && source_.value_offset == key && target_.value_offset == key;
    if (joined) box.run += value;
    const bool apart = value > 0 && !joined;
    if (apart && key == value) box.Add({2, source_.value_offset, target_.value_offset});
    box.Add({copy.tokens, source_.token_stride, target_.token_stride});
    out->of_key.push_back(box);
    if (apart && key != value) {
      box.source += source_.value_offset;
      box.target += target_.value_offset;
      box.run = value;
      out->of_value.push_back(box);
    }
    return OkStatus();
  }

 private:
  const Format &source_, &target_;
};

}  // namespace

Status TellMoves(const FormatOf& sources, const Format& target, std::span<const PageCopy> copies,
                 const std::function<Status(const ByteMove&)>& tell) {
  Teller teller(tell);
  Boxes boxes;
  const Format* source = nullptr;  // the one used last
  for (size_t begin = 0; begin < copies.size(); begin += kFoldedAtOnce) {
    boxes = {};
    for (const PageCopy& copy :
         copies.subspan(begin, std::min(kFoldedAtOnce, copies.size() - begin))) {
      const Format* its = sources(copy.source_rank);
      if (its == nullptr) return Bad(fmt::format("rank {} has none", copy.source_rank));
      if (its != source) TANGRAM_RETURN_IF_ERROR(CheckAlike(*its, target));
      source = its;
      TANGRAM_RETURN_IF_ERROR(Boxer(*its, target).Add(copy, &boxes));
    }
    for (std::vector<Box>* some : {&boxes.of_key, &boxes.of_value}) {
      Fold(some);  // heads of a block
      Fold(some);  // blocks
      for (Box& box : *some) {
        Collapse(&box);
        TANGRAM_RETURN_IF_ERROR(teller.Tell(box));
      }
    }
  }
  return teller.Flush();
}

}  // namespace tangram::kv
