package gateway

import (
	"slices"
	"strconv"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// sampling has fields that not all engines support: World.Can lists the supported ones. vLLM defines the rest.
type sampling struct {
	MinTokens         int64               `json:"min_tokens"`
	TopK              int64               `json:"top_k"` // 0 or -1: off
	MinP              float64             `json:"min_p"`
	PresencePenalty   float64             `json:"presence_penalty"`
	FrequencyPenalty  float64             `json:"frequency_penalty"`
	RepetitionPenalty *float64            `json:"repetition_penalty"` // 1: off
	LogitBias         map[string]*float64 `json:"logit_bias"`
}

// maxBias is the number of tokens in a logit_bias, and largestBias is OpenAI's limit of a value.
const (
	maxBias     = 1024
	largestBias = 100
)

// ask checks the fields and adds them to the Submit. Disabled ones are left out, so that any engine accepts it.
func (p *sampling) ask(s *tangramv1.Submit, world *tangramv1.World) error {
	within := func(field string, value, least, most float64) error {
		if value < least || value > most {
			return bad(field, "%v is out of range; send a value from %v to %v", value, least, most)
		}
		return nil
	}
	for _, err := range []error{
		within("min_tokens", float64(p.MinTokens), 0, float64(s.MaxTokens)),
		within("top_k", float64(p.TopK), -1, float64(world.Vocabulary)),
		within("min_p", p.MinP, 0, 1),
		within("presence_penalty", p.PresencePenalty, -2, 2),
		within("frequency_penalty", p.FrequencyPenalty, -2, 2),
	} {
		if err != nil {
			return err
		}
	}
	s.MinTokens, s.TopK, s.MinP = uint32(p.MinTokens), uint32(max(p.TopK, 0)), float32(p.MinP)
	s.PresencePenalty, s.FrequencyPenalty = float32(p.PresencePenalty), float32(p.FrequencyPenalty)
	if r := p.RepetitionPenalty; r != nil && *r != 1 {
		if *r < 0.01 || *r > 2 {
			return bad("repetition_penalty", "%v is out of range; send a value from 0.01 to 2", *r)
		}
		s.RepetitionPenalty = float32(*r)
	}
	if err := p.bias(s, world); err != nil {
		return err
	}
	return supported(s, world)
}

func (p *sampling) bias(s *tangramv1.Submit, world *tangramv1.World) error {
	if len(p.LogitBias) == 0 {
		return nil
	}
	if len(p.LogitBias) > maxBias {
		return bad("logit_bias", "has %d tokens; send at most %d", len(p.LogitBias), maxBias)
	}
	s.LogitBias = make(map[uint32]float32, len(p.LogitBias))
	for id, bias := range p.LogitBias {
		token, err := strconv.ParseUint(id, 10, 32)
		if err != nil || token >= uint64(world.Vocabulary) {
			return bad("logit_bias", "%q is not a token id of this model; send ids below %d", short(id), world.Vocabulary)
		}
		if bias == nil || *bias < -largestBias || *bias > largestBias {
			return bad("logit_bias", "the bias of token %d is out of range; send a value from -%d to %d", token, largestBias, largestBias)
		}
		s.LogitBias[uint32(token)] = float32(*bias)
	}
	return nil
}

// supported rejects Submit fields, from min_tokens on, that the engines of this world do not list.
func supported(s *tangramv1.Submit, world *tangramv1.World) error {
	fields := s.ProtoReflect().Descriptor().Fields()
	first := fields.ByName("min_tokens").Number()
	for i := range fields.Len() {
		field := fields.Get(i)
		if name := string(field.Name()); field.Number() >= first && s.ProtoReflect().Has(field) && !slices.Contains(world.Can, name) {
			return bad(name, "is not supported by the engines of this world; remove the field")
		}
	}
	return nil
}
