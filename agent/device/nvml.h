// Data of NVIDIA's management library that CUDA does not have: a GPU's NVLink domain.
#pragma once

#include <string>

namespace tangram::device {

// "<uuid of the domain>.<clique>" of the GPU at this address of the PCI bus. Processes of the same
// domain and clique can map its memory, also from other nodes. Empty: the library is missing, or
// knows of no domain (a GPU whose NVLink ends at its node has none).
std::string FabricOf(const std::string& library, const std::string& pci_bus_id);

}  // namespace tangram::device
