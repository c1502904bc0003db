package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Folders of containerd's images in a node: the archives' layers, and the unpacked layers.
const (
	contentDir  = "containerd/io.containerd.content.v1.content/blobs"
	snapshotDir = "containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
)

// worthSharing is the minimum size: for smaller files the search costs more than it saves.
const worthSharing = 1 << 20

// place identifies a file that several nodes may have.
type place struct {
	path string // relative to its snapshot or to the blobs
	size int64
	mode fs.FileMode
}

// share replaces large files of the same image by hard links to the first node's. So an image is on disk and in the
// page cache once, for any number of nodes. Layers are only read; containers write to separate copies. Call it before
// containers run from the layers. It returns the freed bytes.
func share(homes []string) (freed int64, err error) {
	first := map[place][]string{}
	for i, home := range homes {
		err := files(home, func(at place, path string) error {
			if i == 0 {
				first[at] = append(first[at], path)
				return nil
			}
			for _, twin := range first[at] {
				done, err := link(twin, path)
				if err != nil {
					return err
				}
				if done {
					freed += at.size
					return nil
				}
			}
			first[at] = append(first[at], path)
			return nil
		})
		if err != nil {
			return freed, fmt.Errorf("share images of nodes: %w", err)
		}
	}
	return freed, nil
}

// files visits the files of images in a node's home that are worth sharing.
func files(home string, each func(at place, path string) error) error {
	roots := []string{filepath.Join(home, contentDir)}
	snapshots, err := filepath.Glob(filepath.Join(home, snapshotDir, "*", "fs"))
	if err != nil {
		return err
	}
	for _, root := range slices.Concat(roots, snapshots) {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // a container ended in the meantime
				return nil
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < worthSharing {
				return nil
			}
			if err != nil {
				return err
			}
			inside, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return each(place{inside, info.Size(), info.Mode()}, path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// link replaces path by a link to its twin if their content is equal; false: it differs, or they are already one file.
func link(twin, path string) (bool, error) {
	equal, err := same(twin, path)
	if err != nil || !equal {
		return false, err
	}
	beside := path + ".shared"
	if err := os.Link(twin, beside); err != nil {
		return false, err
	}
	return true, os.Rename(beside, path)
}

// same reports whether two files of one size are different files with the same bytes.
func same(a, b string) (equal bool, err error) {
	var opened [2]*os.File
	var infos [2]fs.FileInfo
	for i, path := range []string{a, b} {
		if opened[i], err = os.Open(path); err != nil {
			return false, err
		}
		defer func() { _ = opened[i].Close() }() // only read
		if infos[i], err = opened[i].Stat(); err != nil {
			return false, err
		}
	}
	if os.SameFile(infos[0], infos[1]) {
		return false, nil
	}
	var buffers [2][]byte
	for i := range buffers {
		buffers[i] = make([]byte, 1<<20)
	}
	for {
		n, err := io.ReadFull(opened[0], buffers[0])
		m, err2 := io.ReadFull(opened[1], buffers[1])
		if !bytes.Equal(buffers[0][:n], buffers[1][:m]) {
			return false, nil
		}
		for _, err := range []error{err, err2} {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return true, nil
			}
			if err != nil {
				return false, err
			}
		}
	}
}
