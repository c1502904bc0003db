package gateway

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Bounds of the directory, whatever engines report: hashes of all ranks, and blocks per prompt to look up.
const (
	mostPrefixes = 1 << 20
	mostBlocks   = 4096
)

// prefixes of one engine's cache, as reported over this connection (tangramv1.Prefixes). It is only a hint: with a
// wrong entry, a rank computes what another has cached. An engine serves one revision of the weights, and so do its
// prefixes.
type prefixes struct {
	generation uint64
	here       map[uint64]struct{}
}

// hear applies a report. Above `most` hashes, arbitrary ones are dropped.
func (c *prefixes) hear(news *tangramv1.Prefixes, most int) {
	if news.Generation != c.generation || c.here == nil {
		*c = prefixes{generation: news.Generation, here: map[uint64]struct{}{}}
	}
	for _, hash := range news.Gone {
		delete(c.here, hash)
	}
	for i, hash := range news.Here {
		if i == most { // the report exceeds the limit
			break
		}
		c.here[hash] = struct{}{}
	}
	for hash := range c.here {
		if len(c.here) <= most {
			break
		}
		delete(c.here, hash)
	}
}

// longest returns the length of the chain's longest cached prefix, in blocks.
func (c *prefixes) longest(chain []uint64) int {
	for i, hash := range chain {
		if _, there := c.here[hash]; !there {
			return i
		}
	}
	return len(chain)
}

// chainOf returns the hashes of a prompt's full blocks. The last token is excluded, because it is always computed.
func chainOf(prompt []uint32, salt string, blockTokens uint32) (chain []uint64) {
	if blockTokens == 0 {
		return nil
	}
	hash := xxhash.Sum64String(salt)
	var block []byte
	for blocks := min((len(prompt)-1)/int(blockTokens), mostBlocks); len(chain) < blocks; {
		block = binary.LittleEndian.AppendUint64(block[:0], hash)
		for _, token := range prompt[len(chain)*int(blockTokens) : (len(chain)+1)*int(blockTokens)] {
			block = binary.LittleEndian.AppendUint32(block, token)
		}
		hash = xxhash.Sum64(block)
		chain = append(chain, hash)
	}
	return chain
}

// prefixesLocked handles a report of one engine's cache.
func (p *Pool) prefixesLocked(s *session, news *tangramv1.Prefixes) {
	if news == nil || p.o.ByLoadAlone || s.gateway != p.o.Gateway {
		return
	}
	if p.force.Load().has(s) {
		p.blockTokens.Store(news.BlockTokens)
	}
	s.cached.hear(news, mostPrefixes/max(1, len(p.sessions)))
}

// overLoad returns the most requests that a rank may have and still be selected for its cache. This is a quarter more
// than the least loaded rank, as flips balance homes (kv::kLopsided), and at least one more. While some rank is idle,
// no request queues behind others for a cache.
func overLoad(least int) int {
	if least == 0 {
		return 0
	}
	return least + max(1, least/4)
}
