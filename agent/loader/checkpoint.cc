#include "agent/loader/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "agent/base/fields.h"
#include "agent/device/hash.h"
#include "agent/loader/folder.h"

namespace tangram::loader {
namespace {

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(const std::string& directory,
                                                           uint32_t granule_rows,
                                                           uint64_t page_bytes,
                                                           v1::SlabFormat format) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->config_path_ = PathIn(directory, "config.json");
  auto config = ReadText(checkpoint->config_path_);
  if (!config.ok()) return config.status();
  checkpoint->config_json_ = std::move(config).value();
  if (Status status = checkpoint->ReadHeaders(directory); !status.ok()) return status;
  if (Status status = checkpoint->BuildGeometry(granule_rows, page_bytes, format); !status.ok())
    return status;
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

Status Checkpoint::StillReadable() const {
  for (const auto& file : files_) TANGRAM_RETURN_IF_ERROR(file->StillThere());
  return OkStatus();
}

Checkpoint::Reads Checkpoint::reads() const {
  Reads out;
  for (const auto& file : files_) {
    out.calls += file->calls();
    out.bytes += file->bytes_read();
  }
  return out;
}

Status Checkpoint::ReadHeaders(const std::string& directory) {
  const auto weights = FindWeights(directory);
  if (!weights.ok()) return weights.status();
  for (const std::string& file : weights->files) {
    TANGRAM_RETURN_IF_ERROR(ReadHeader(PathIn(directory, file), file, weights->weight_map));
  }
  for (const auto& [tensor, file] : weights->weight_map) {
    if (tensors_.contains(tensor)) continue;
    return {
        Code::kInvalid,
        fmt::format(
            "{}: maps tensor '{}' to {}, which does not contain it; add the index of these files",
            weights->index, Printable(tensor), Printable(file))};
  }
  return OkStatus();
}

Status Checkpoint::ReadHeader(const std::string& path, const std::string& name_in_index,
                              const std::map<std::string, std::string>& weight_map) {
  auto opened = OpenFile(path);
  if (!opened.ok()) return opened.status();
  const File& file = *files_.emplace_back(std::move(opened).value());
  const auto read = [&](std::string* prefix) {
    return file.Read(0, std::as_writable_bytes(std::span(*prefix)));
  };
  std::string prefix(std::min<uint64_t>(8, file.size()), '\0');
  TANGRAM_RETURN_IF_ERROR(read(&prefix));
  const auto length = HeaderBytes(prefix, file.size(), path);
  if (!length.ok()) return length.status();
  prefix.resize(*length);
  TANGRAM_RETURN_IF_ERROR(read(&prefix));
  auto header = ParseHeader(prefix, file.size(), path);
  if (!header.ok()) return header.status();
  for (auto& [name, info] : *header) {
    const auto said = weight_map.find(name);
    if (said != weight_map.end() && said->second != name_in_index) continue;  // another's
    const auto [it, added] = tensors_.emplace(name, Place{&file, std::move(info)});
    if (!added) {
      return {Code::kInvalid,
              fmt::format("{}: tensor '{}' is also in {}, and no index selects one of them", path,
                          Printable(name), it->second.file->path())};
    }
  }
  return OkStatus();
}

Result<Checkpoint::Place> Checkpoint::Take(const std::string& name,
                                           const std::vector<uint64_t>& shape) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return Status(Code::kBadGeometry,
                  fmt::format("{}: tensor '{}' is missing: no file of the checkpoint contains it",
                              config_path_, name));
  }
  if (it->second.info.shape != shape) {
    return Status(
        Code::kBadGeometry,
        fmt::format("{}: tensor '{}' is {}, config.json declares {}", it->second.file->path(), name,
                    ShapeText(it->second.info.shape), ShapeText(shape)));
  }
  Place place = std::move(it->second);
  tensors_.erase(it);
  return place;
}

// The tensors of one expert, or, if stacked, of a layer's experts.
Status Checkpoint::TakeExperts(const std::string& prefix, const v1::Geometry& declared,
                               std::vector<Part>* parts) {
  std::map<std::string, Place> shared;  // stacked tensors of several matrices
  for (const TensorRule& rule : style_->tensors) {
    const std::string name = prefix + rule.name;
    auto place =
        shared.contains(name) ? shared.at(name) : Take(name, ShapeOf(*style_, rule, declared));
    if (!place.ok()) return place.status();
    if (rule.of > 1) shared.emplace(name, *place);
    const v1::DType dtype = place->info.dtype;
    if (!rule.scale && (dtype == v1::DTYPE_FP8_E4M3_BLOCK128) != style_->fp8) {
      return {
          Code::kBadGeometry,
          fmt::format("{}: '{}' is {}, but quantization_config in config.json declares {}FP8",
                      place->file->path(), name, v1::DType_Name(dtype), style_->fp8 ? "" : "no ")};
    }
    v1::DType& others = rule.scale ? scales_ : dtype_;
    if (others == v1::DTYPE_UNSPECIFIED) others = dtype;
    if (dtype != others) {
      return {Code::kBadGeometry,
              fmt::format("checkpoint: '{}' is {}, other {} are {}", name, v1::DType_Name(dtype),
                          rule.scale ? "scales of experts" : "experts", v1::DType_Name(others))};
    }
    if (rule.scale && dtype == v1::DTYPE_FP8_E4M3_BLOCK128) {
      return {Code::kBadGeometry,
              fmt::format("checkpoint: '{}' is F8_E4M3, scales are F32 or BF16", name)};
    }
    const uint64_t stride = style_->stacked ? place->info.bytes / declared.experts() : 0;
    const uint64_t before = rule.lies == Lies::kRows
                                ? rule.part * stride / rule.of
                                : rule.part * declared.moe_inner() * ElementBytes(dtype);
    parts->push_back({place->file, place->info.begin + before, stride});
  }
  return OkStatus();
}

Status Checkpoint::FindExperts(const Declared& config) {
  const v1::Geometry& declared = config.geometry;
  const auto style = StyleOf(declared.model(), config.fp8);
  if (!style.ok()) return style.status();
  style_ = *style;
  if (declared.moe_layers_size() == 0) return OkStatus();
  const Style* const stacked = StackedStyleOf(declared.model(), config.fp8);
  if (stacked != nullptr && tensors_.contains(stacked->Prefix(declared.moe_layers(0), 0) +
                                              stacked->tensors.front().name)) {
    style_ = stacked;
  }
  for (const uint32_t layer : declared.moe_layers()) {
    std::vector<Part>& parts = parts_.emplace_back();
    // Added one by one: the number of experts is an unchecked claim.
    for (uint32_t e = 0; e < (style_->stacked ? 1 : declared.experts()); ++e) {
      TANGRAM_RETURN_IF_ERROR(TakeExperts(style_->Prefix(layer, e), declared, &parts));
    }
  }
  return OkStatus();
}

void Checkpoint::LeaveOut(const Declared& config) {
  const std::string prefix = style_->layers;
  std::erase_if(tensors_, [&](const auto& tensor) {
    const std::string_view name = tensor.first;
    if (name.ends_with(".rotary_emb.inv_freq")) return true;
    if (name == "lm_head.weight" || name.ends_with(".lm_head.weight")) return config.tied;
    if (!name.starts_with(prefix)) return false;
    const char* const end = name.data() + name.size();
    uint64_t layer = 0;
    const auto number = std::from_chars(name.data() + prefix.size(), end, layer);
    return number.ec == std::errc() && number.ptr != end && *number.ptr == '.' &&
           layer >= config.geometry.layers();
  });
}

void Checkpoint::PlaceDense() {
  uint64_t next = 0;
  for (auto& [name, place] : tensors_) {  // ordered by name
    dense_.push_back({name, place.info, next});
    next = layout::RoundUp(next + place.info.bytes, layout::kPieceAlignment);
    dense_places_.push_back(std::move(place));
  }
  tensors_.clear();
}

Status Checkpoint::BuildGeometry(uint32_t granule_rows, uint64_t page_bytes,
                                 v1::SlabFormat format) {
  auto declared = DeclaredBy(config_json_, config_path_);
  if (!declared.ok()) return declared.status();
  TANGRAM_RETURN_IF_ERROR(FindExperts(*declared));
  LeaveOut(*declared);
  v1::Geometry g = std::move(declared->geometry);
  // The remaining tensors are dense. A routed expert among them would be on every rank.
  for (const auto& [name, place] : tensors_) {
    if (name.find(fmt::format(".{}", style_->experts)) == std::string::npos) continue;
    return {Code::kBadGeometry,
            fmt::format("{}: tensor '{}' belongs to no expert that config.json declares ({} MoE "
                        "layers of {} layers, {} experts each)",
                        place.file->path(), Printable(name), g.moe_layers_size(), g.layers(),
                        g.experts())};
  }
  PlaceDense();
  g.set_dtype(parts_.empty() ? v1::DTYPE_BF16 : dtype_);
  g.set_granule_rows(granule_rows > 0 ? granule_rows
                                      : layout::DefaultGranuleRows(g.moe_inner(), g.dtype()));
  g.set_slab_format(format);
  const auto of_config = [&](const Status& status) {
    const std::string chosen =
        granule_rows > 0
            ? ""
            : fmt::format(" (granule_rows was chosen for experts of {} rows)", g.moe_inner());
    return Status(status.code(), fmt::format("{}: {}{}", config_path_, status.message(), chosen));
  };
  auto sections = SectionsOf(*style_, scales_, &g);
  if (!sections.ok()) return of_config(sections.status());
  sections_ = std::move(sections).value();
  g.set_page_bytes(page_bytes);
  g.set_dense_bytes(dense_.empty() ? 0 : dense_.back().offset + dense_.back().info.bytes);
  auto view = layout::GeometryView::Make(g);
  if (!view.ok()) return of_config(view.status());
  geometry_ = std::make_unique<layout::GeometryView>(std::move(view).value());
  return OkStatus();
}

Status Checkpoint::ReadDense(size_t index, std::span<std::byte> out, uint64_t* hash) const {
  if (index >= dense_.size() || out.size() != dense_[index].info.bytes) {
    return {Code::kInvalid,
            fmt::format("checkpoint: no dense tensor {} of {} bytes", index, out.size())};
  }
  const Place& place = dense_places_[index];
  device::Hasher hasher;  // block by block: the bytes just read are still in the cache
  for (uint64_t at = 0; at < out.size(); at += kBlock) {
    const auto block = out.subspan(at, std::min(kBlock, out.size() - at));
    TANGRAM_RETURN_IF_ERROR(place.file->Read(place.info.begin + at, block));
    if (hash != nullptr) hasher.Add(block);
  }
  if (hash != nullptr) *hash = hasher.Value();
  return OkStatus();
}

}  // namespace tangram::loader
