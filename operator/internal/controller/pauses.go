package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Pauses after conflicts of one object: the first, doubling up to the longest.
const (
	conflictPause        = 20 * time.Millisecond
	longestConflictPause = 5 * time.Second
)

// pauses counts consecutive conflicts per object, so that a lagging cache is not read 50 times a second.
type pauses struct {
	mu    sync.Mutex
	count map[types.NamespacedName]int
}

func (p *pauses) next(key types.NamespacedName) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == nil {
		p.count = map[types.NamespacedName]int{}
	}
	n := p.count[key]
	p.count[key] = min(n+1, 16)
	return min(conflictPause<<n, longestConflictPause)
}

func (p *pauses) forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.count, key)
}

// runNames are the names of the LayoutTransitions that this operator is running.
type runNames struct {
	mu    sync.Mutex
	names map[types.UID]string
}

func (n *runNames) set(uid types.UID, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name == "" {
		delete(n.names, uid)
		return
	}
	if n.names == nil {
		n.names = map[types.UID]string{}
	}
	n.names[uid] = name
}

func (n *runNames) of(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[uid]
}
