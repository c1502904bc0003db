package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// File is a Store in one JSON file. A lock file next to it serializes writers. A reader sees the file before or after a
// write, never a part of it.
type File struct{ path string }

// OpenFile creates the folder if needed; the first write creates the file.
func OpenFile(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return &File{path: path}, nil
}

func (f *File) read() (map[string]Record, error) {
	records := map[string]Record{}
	wire, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return records, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := json.Unmarshal(wire, &records); err != nil {
		return nil, fmt.Errorf("store: %s: %w", f.path, err)
	}
	return records, nil
}

// Get implements Store.
func (f *File) Get(_ context.Context, key string) (Record, error) {
	records, err := f.read()
	return records[key], err
}

// CompareAndSwap implements Store.
func (f *File) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	lock, err := os.OpenFile(f.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	defer func() { _ = lock.Close() }() // releases the lock; nothing was written to it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return 0, fmt.Errorf("store: lock %s: %w", lock.Name(), err)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	records, err := f.read()
	if err != nil {
		return 0, err
	}
	if have := records[key].Version; have != version {
		return 0, fmt.Errorf("store: record %q is at version %d, expected %d: %w", key, have, version, ErrConflict)
	}
	records[key] = Record{Version: version + 1, Value: value}
	wire, err := json.MarshalIndent(records, "", " ")
	if err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	if err := replace(f.path, wire); err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	return version + 1, nil
}

// replace writes a temporary file in the same folder, makes it durable, and only then renames it to path.
func replace(path string, content []byte) error {
	part, err := os.OpenFile(path+".part", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = part.Write(content)
	if err == nil {
		err = part.Sync()
	}
	if closing := part.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only read
	return dir.Sync()                  // makes the new name durable
}
