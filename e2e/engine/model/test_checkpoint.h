// Checkpoints for tests, written by e2e/model/make_checkpoint.py once per preset and build folder.
#pragma once

#include <string>

#include "agent/base/status.h"

namespace tangram::model {

// The folder of the preset's checkpoint with seed 1, made by the first process that requests it.
// The script runs in build/venv (made by the set-up), or in TANGRAM_PYTHON.
Result<std::string> TestCheckpoint(const std::string& preset);

// granule_rows of the preset, as make_checkpoint.py prints it.
uint32_t TestGranuleRows(const std::string& preset);

}  // namespace tangram::model
