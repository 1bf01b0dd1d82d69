package main

import (
	"errors"
	"fmt"
)

const version = 1

var errShape = errors.New("a frame of another shape than docs/wire.md says")

// Chunk is consecutive tokens of one sequence.
type Chunk struct {
	Index        int64     `json:"index"`
	TokenIDs     []int64   `json:"token_ids"`
	Texts        []string  `json:"texts"`
	Logprobs     []Logprob `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

// Logprob is of one token. Top are the most likely ones in its place.
type Logprob struct {
	TopLogprob
	Top []TopLogprob `json:"top"`
}

type TopLogprob struct {
	TokenID int64    `json:"token_id"`
	Bytes   []int    `json:"bytes"` // a token may be part of a character
	Logprob *float64 `json:"logprob"`
}

// End is the last entry of a stream.
type End struct {
	Status string    `json:"status"`
	Usage  Usage     `json:"usage"`
	Error  *JobError `json:"error"`
}

type Usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	CachedTokens     int64 `json:"cached_tokens"`
}

type JobError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

// decodeEntry reads an entry of a token stream: one of both is nil.
func decodeEntry(data []byte) (*Chunk, *End, error) {
	kind, fields, err := open(data)
	if err != nil {
		return nil, nil, err
	}
	switch kind {
	case "c":
		chunk, err := chunkOf(fields)
		return chunk, nil, err
	case "e":
		end, err := endOf(fields)
		return nil, end, err
	}
	return nil, nil, fmt.Errorf("a stream has no frames of kind %q", kind)
}

// decodeResult reads the end of a job and all its chunks.
func decodeResult(data []byte) (*End, []*Chunk, error) {
	kind, fields, err := open(data)
	if err != nil {
		return nil, nil, err
	}
	rows, isArray := field(fields, 1).([]any)
	ending, isEnd := field(fields, 0).([]any)
	if kind != "r" || !isArray || !isEnd {
		return nil, nil, errShape
	}
	end, err := endOf(ending)
	if err != nil {
		return nil, nil, err
	}
	chunks := []*Chunk{}
	for _, row := range rows {
		fields, _ := row.([]any)
		chunk, err := chunkOf(fields)
		if err != nil {
			return nil, nil, err
		}
		chunks = append(chunks, chunk)
	}
	return end, chunks, nil
}

func open(data []byte) (string, []any, error) {
	value, err := decode(data)
	if err != nil {
		return "", nil, err
	}
	frame, _ := value.([]any)
	if number, isNumber := field(frame, 0).(int64); isNumber && number != version {
		return "", nil, fmt.Errorf("frames of version %d need another reader", number)
	}
	kind, isText := field(frame, 1).(string)
	if !isText {
		return "", nil, errShape
	}
	return kind, frame[2:], nil
}

// field is one that may be left off at the end. Those behind the known ones are ignored.
func field(fields []any, i int) any {
	if i < len(fields) {
		return fields[i]
	}
	return nil
}

func chunkOf(fields []any) (*Chunk, error) {
	index, hasIndex := field(fields, 0).(int64)
	ids, hasIDs := field(fields, 1).([]any)
	texts, hasTexts := field(fields, 2).([]any)
	if !hasIndex || !hasIDs || !hasTexts || len(ids) != len(texts) {
		return nil, errShape
	}
	chunk := &Chunk{Index: index, TokenIDs: []int64{}, Texts: []string{}, FinishReason: textOrNil(field(fields, 4))}
	if rows, has := field(fields, 3).([]any); has {
		chunk.Logprobs = logprobsOf(rows)
	}
	for i := range ids {
		id, hasID := ids[i].(int64)
		text, hasText := texts[i].(string)
		if !hasID || !hasText {
			return nil, errShape
		}
		chunk.TokenIDs, chunk.Texts = append(chunk.TokenIDs, id), append(chunk.Texts, text)
	}
	return chunk, nil
}

func logprobsOf(rows []any) []Logprob {
	logprobs := []Logprob{}
	for _, row := range rows {
		fields, _ := row.([]any)
		one := Logprob{TopLogprob: topLogprobOf(fields), Top: []TopLogprob{}}
		others, _ := field(fields, 3).([]any)
		for _, other := range others {
			fields, _ := other.([]any)
			one.Top = append(one.Top, topLogprobOf(fields))
		}
		logprobs = append(logprobs, one)
	}
	return logprobs
}

func topLogprobOf(fields []any) TopLogprob {
	one := TopLogprob{Bytes: []int{}}
	one.TokenID, _ = field(fields, 0).(int64)
	token, _ := field(fields, 1).([]byte)
	for _, b := range token {
		one.Bytes = append(one.Bytes, int(b))
	}
	if number, isNumber := field(fields, 2).(float64); isNumber {
		one.Logprob = &number
	}
	return one
}

func endOf(fields []any) (*End, error) {
	status, hasStatus := field(fields, 0).(string)
	if !hasStatus {
		return nil, errShape
	}
	end := &End{Status: status}
	counts, _ := field(fields, 1).([]any)
	for i, count := range []*int64{&end.Usage.PromptTokens, &end.Usage.CompletionTokens, &end.Usage.CachedTokens} {
		*count, _ = field(counts, i).(int64)
	}
	if problem, failed := field(fields, 2).([]any); failed {
		end.Error = &JobError{Param: textOrNil(field(problem, 2))}
		end.Error.Code, _ = field(problem, 0).(string)
		end.Error.Message, _ = field(problem, 1).(string)
	}
	return end, nil
}

func textOrNil(value any) *string {
	if text, isText := value.(string); isText {
		return &text
	}
	return nil
}
