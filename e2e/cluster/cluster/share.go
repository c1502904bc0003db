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

// Where a node's containerd keeps what it has of images: archives' layers, and the same unpacked.
const (
	contentDir  = "containerd/io.containerd.content.v1.content/blobs"
	snapshotDir = "containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
)

// worthSharing: smaller files cost a node less than looking for their twins.
const worthSharing = 1 << 20

// place of a file that several nodes may have.
type place struct {
	path string // below its snapshot or among the blobs
	size int64
	mode fs.FileMode
}

// share the large files that nodes have of the same image: all have the first node's, by hard links, so that an image is on disk once and in the
// page cache once, however many nodes there are. Layers are only read; what a container writes is a copy of its own. Call it before
// containers run from them. It gives the bytes that were freed.
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

// files of images in a node's home that are worth sharing.
func files(home string, each func(at place, path string) error) error {
	roots := []string{filepath.Join(home, contentDir)}
	snapshots, err := filepath.Glob(filepath.Join(home, snapshotDir, "*", "fs"))
	if err != nil {
		return err
	}
	for _, root := range slices.Concat(roots, snapshots) {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // a container ended meanwhile
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

// link path to its twin if they hold the same; false: they do not, or are one file already.
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

// same says whether two files of one size are two files with the same bytes.
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
