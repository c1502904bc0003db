// What NVIDIA's management library says of a GPU and CUDA does not: the NVLink domain that it is
// in.
#pragma once

#include <string>

namespace tangram::device {

// "<uuid of the domain>.<clique>" of the GPU at this address of the PCI bus, whose memory others of
// the same domain and clique can map although they are on other nodes. Empty: the library is not
// here, or knows of none (a GPU whose NVLink ends at its node is in none).
std::string FabricOf(const std::string& library, const std::string& pci_bus_id);

}  // namespace tangram::device
