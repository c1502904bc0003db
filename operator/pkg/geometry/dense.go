package geometry

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// headerBytes is the maximum size of the header of a safetensors file, as in the agent.
const headerBytes = 100 << 20

// DenseBytes returns the bytes of a checkpoint's weights outside routed experts, which each rank holds whole. It reads
// the headers of the folder's safetensors files, not their tensors. The error names the file.
func DenseBytes(folder string) (uint64, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("%s: no *.safetensors file", folder)
	}
	var sum uint64
	for _, file := range files {
		one, err := denseOf(file)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += one
	}
	return sum, nil
}

// denseOf reads one file: 8 bytes with the size of a JSON header, which names each tensor and its range.
func denseOf(file string) (uint64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var size uint64
	if err := binary.Read(f, binary.LittleEndian, &size); err != nil || size > min(headerBytes, uint64(max(info.Size()-8, 0))) {
		return 0, fmt.Errorf("not a safetensors file: its header would have %d of %d bytes", size, info.Size())
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(f, text); err != nil {
		return 0, err
	}
	var tensors map[string]struct {
		Range [2]uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(text, &tensors); err != nil {
		return 0, fmt.Errorf("the header is not JSON of tensors: %w", err)
	}
	var sum uint64
	for name, t := range tensors {
		if name == "__metadata__" || strings.Contains(name, ".experts.") {
			continue
		}
		if t.Range[1] < t.Range[0] || t.Range[1] > uint64(info.Size()) {
			return 0, fmt.Errorf("tensor %s has the range %v of a file of %d bytes", name, t.Range, info.Size())
		}
		sum += t.Range[1] - t.Range[0]
	}
	return sum, nil
}
