package simulator

import (
	"maps"
	"slices"
)

// cache of a group's prefix blocks; the least recently used is evicted first.
type cache struct {
	at         map[int32]int32 // slot of a block
	slots      []entry
	free       []int32
	head, tail int32 // most and least recently used; -1: none
}

type entry struct{ block, before, after int32 }

func newCache() cache { return cache{at: map[int32]int32{}, head: -1, tail: -1} }

func (c *cache) clone() cache {
	return cache{maps.Clone(c.at), slices.Clone(c.slots), slices.Clone(c.free), c.head, c.tail}
}

func (c *cache) size() int { return len(c.at) }

// prefix returns how many of these blocks, from the first on, are cached. With `use` they count as used.
func (c *cache) prefix(blocks []int32, use bool) int {
	for i, b := range blocks {
		slot, ok := c.at[b]
		if !ok {
			return i
		}
		if use {
			c.unlink(slot)
			c.push(slot)
		}
	}
	return len(blocks)
}

func (c *cache) add(block int32) {
	if slot, ok := c.at[block]; ok {
		c.unlink(slot)
		c.push(slot)
		return
	}
	var slot int32
	if n := len(c.free); n > 0 {
		slot, c.free = c.free[n-1], c.free[:n-1]
	} else {
		slot, c.slots = int32(len(c.slots)), append(c.slots, entry{})
	}
	c.slots[slot].block = block
	c.at[block] = slot
	c.push(slot)
}

// shrink to at most `most` blocks.
func (c *cache) shrink(most int) {
	for len(c.at) > max(most, 0) {
		slot := c.tail
		c.unlink(slot)
		delete(c.at, c.slots[slot].block)
		c.free = append(c.free, slot)
	}
}

func (c *cache) push(slot int32) {
	c.slots[slot].before, c.slots[slot].after = -1, c.head
	if c.head >= 0 {
		c.slots[c.head].before = slot
	}
	c.head = slot
	if c.tail < 0 {
		c.tail = slot
	}
}

func (c *cache) unlink(slot int32) {
	e := c.slots[slot]
	if e.before >= 0 {
		c.slots[e.before].after = e.after
	} else {
		c.head = e.after
	}
	if e.after >= 0 {
		c.slots[e.after].before = e.before
	} else {
		c.tail = e.before
	}
}
