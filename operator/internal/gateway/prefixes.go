package gateway

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Bounds of the directory, whatever engines tell: hashes of all ranks together, and blocks of a prompt that are looked for.
const (
	mostPrefixes = 1 << 20
	mostBlocks   = 4096
)

// prefixes that one engine has cached, as it told over this connection (tangramv1.Prefixes). A hint: an entry that is wrong sends a request to a
// rank that computes what another has. An engine lives in one revision of the weights, so these are of that one.
type prefixes struct {
	generation uint64
	here       map[uint64]struct{}
}

// hear news. Of more than `most` hashes any are forgotten.
func (c *prefixes) hear(news *tangramv1.Prefixes, most int) {
	if news.Generation != c.generation || c.here == nil {
		*c = prefixes{generation: news.Generation, here: map[uint64]struct{}{}}
	}
	for _, hash := range news.Gone {
		delete(c.here, hash)
	}
	for i, hash := range news.Here {
		if i == most { // a message that is longer than all that is kept
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

// longest beginning of a chain that is cached, in blocks.
func (c *prefixes) longest(chain []uint64) int {
	for i, hash := range chain {
		if _, there := c.here[hash]; !there {
			return i
		}
	}
	return len(chain)
}

// chainOf has the hashes of a prompt's full blocks. The last token is not counted: it is always computed.
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

// prefixesLocked are news of one engine's cache.
func (p *Pool) prefixesLocked(s *session, news *tangramv1.Prefixes) {
	if news == nil || p.o.ByLoadAlone || s.gateway != p.o.Gateway {
		return
	}
	if p.force.Load().has(s) {
		p.blockTokens.Store(news.BlockTokens)
	}
	s.cached.hear(news, mostPrefixes/max(1, len(p.sessions)))
}

// overLoad says how many requests a home may have and still be chosen for what it has cached: a quarter more than the least loaded rank, which is the
// bound that flips keep between homes (kv::kLopsided), or one more where these are few. While some rank has nothing to do nobody who has waits for another.
func overLoad(least int) int {
	if least == 0 {
		return 0
	}
	return least + max(1, least/4)
}
