// Package store keeps the few records that must survive a driver: what it intends, what it
// permitted, who is a member, what was done. All writes compare and swap, so that two
// drivers cannot both act.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrConflict says that the record is not at the expected version: somebody else wrote it.
var ErrConflict = errors.New("the record was changed by another process")

// Record is a value with its version. Version 0: there is no record yet.
type Record struct {
	Version uint64          `json:"version"`
	Value   json.RawMessage `json:"value"`
}

// Store of records by key. Safe for concurrent use, also by several processes.
type Store interface {
	// Get gives version 0 and no error where there is no record.
	Get(ctx context.Context, key string) (Record, error)
	// CompareAndSwap writes the value if the record is at `version` (0: there is none) and
	// gives the new version; else ErrConflict, and nothing is written. What it has written
	// is durable when it returns.
	CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error)
}

// Load reads a record into a typed value; without a record the value stays as it is.
func Load(ctx context.Context, s Store, key string, into any) (uint64, error) {
	record, err := s.Get(ctx, key)
	if err != nil || record.Version == 0 {
		return 0, err
	}
	if err := json.Unmarshal(record.Value, into); err != nil {
		return 0, fmt.Errorf("store: record %q: %w", key, err)
	}
	return record.Version, nil
}

// Save writes a typed value by compare-and-swap.
func Save(ctx context.Context, s Store, key string, version uint64, value any) (uint64, error) {
	wire, err := json.Marshal(value)
	if err != nil {
		return 0, fmt.Errorf("store: record %q: %w", key, err)
	}
	return s.CompareAndSwap(ctx, key, version, wire)
}
