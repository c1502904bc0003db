package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/store"
)

// worldFile lists the agents of a world. Paths are relative to the working directory, not to the file.
type worldFile struct {
	World  string    `json:"world"`
	Agents []string  `json:"agents"` // host:port
	Store  string    `json:"store"`  // file
	TLS    pki.Files `json:"tls"`
}

func readWorld(path string) (*worldFile, error) {
	wire, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError{fmt.Errorf("--world-file: %w", err)}
	}
	w := &worldFile{}
	decoder := json.NewDecoder(bytes.NewReader(wire))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(w); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	if w.World == "" || len(w.Agents) == 0 || w.Store == "" {
		return nil, usageError{fmt.Errorf("%s: want the keys world, agents and store", path)}
	}
	return w, nil
}

// open connects a driver. The returned function closes its agents.
func (w *worldFile) open(log *slog.Logger) (*driver.Driver, func(), error) {
	config, err := pki.Client(w.TLS, w.World, "agent/")
	if err != nil {
		return nil, nil, usageError{err}
	}
	records, err := store.OpenFile(w.Store)
	if err != nil {
		return nil, nil, err
	}
	d := &driver.Driver{World: w.World, Store: records, Log: log, Limits: driver.DefaultLimits}
	var closers []func() error
	for _, address := range w.Agents {
		client, err := agentclient.Dial(address, config)
		if err != nil {
			return nil, nil, err
		}
		d.Agents = append(d.Agents, client)
		closers = append(closers, client.Close)
	}
	return d, func() {
		for _, c := range closers {
			_ = c() // a failed close needs no action
		}
	}, nil
}
