package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Files are paths of PEM files; the C++ programs read the same files.
type Files struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// Folder keeps an authority and its certificates in files, for tests and demos. Each is valid for a year.
type Folder struct {
	authority *Authority
	dir       string
}

// OpenFolder reads the authority of a folder (ca.crt, ca.key), or creates one.
func OpenFolder(dir, world string) (*Folder, error) {
	f := &Folder{dir: dir}
	cert, certErr := os.ReadFile(f.path("ca.crt"))
	key, keyErr := os.ReadFile(f.path("ca.key"))
	if errors.Is(certErr, os.ErrNotExist) && errors.Is(keyErr, os.ErrNotExist) {
		return f, f.create(world)
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	var err error
	if f.authority, err = ParseAuthority(world, Validity{Certificate: 365 * 24 * time.Hour}, cert, key, nil); err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, dir)
	}
	return f, nil
}

func (f *Folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *Folder) create(world string) (err error) {
	if f.authority, err = NewAuthority(world, Validity{Certificate: 365 * 24 * time.Hour}); err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	key, err := f.authority.KeyPEM()
	if err != nil {
		return err
	}
	return f.write("ca", f.authority.BundlePEM(), key)
}

// Issue writes <name>.crt and <name>.key next to the authority's files, for a role of its world.
func (f *Folder) Issue(name, role string, hosts []string) (Files, error) {
	cert, key, err := f.authority.IssuePEM(role, hosts)
	if err != nil {
		return Files{}, err
	}
	return Files{CA: f.path("ca.crt"), Cert: f.path(name + ".crt"), Key: f.path(name + ".key")}, f.write(name, cert, key)
}

func (f *Folder) write(name string, cert, key []byte) error {
	// The key first: a certificate without its key would look like a whole pair.
	for _, file := range []struct {
		name    string
		content []byte
	}{{name + ".key", key}, {name + ".crt", cert}} {
		if err := os.WriteFile(f.path(file.name), file.content, 0o600); err != nil {
			return fmt.Errorf("pki: %w", err)
		}
	}
	return nil
}
