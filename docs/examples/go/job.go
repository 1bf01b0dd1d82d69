package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	page           = "512"
	blockMS        = "1000"           // then the job's status is looked at
	patience       = 60 * time.Second // with a server that does not answer
	forgotten      = 5 * time.Second  // a server that came back is told of its latest jobs again
	submitAttempts = 6
)

var (
	jobID = regexp.MustCompile(`^g(\d\d)_[0-9A-HJKMNP-TV-Z]{26}$`)
	runID = regexp.MustCompile(`run_id:(\w+)`)
)

// Event is tokens of one sequence, or the end. Reset: drop what you have, it comes again from the start.
type Event struct {
	Offset int64 `json:"offset"`
	Reset  bool  `json:"reset,omitempty"`
	*Tokens
	*End
}

type Tokens struct {
	Text         string    `json:"text"`
	Index        int64     `json:"index"`
	TokenIDs     []int64   `json:"token_ids"`
	Logprobs     []Logprob `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

// Submit gives the id of a new job. Sending it again is harmless: the key makes it the same job.
func Submit(gateway, request, apiKey string) (string, error) {
	key := make([]byte, 16)
	if _, err := rand.Read(key); err != nil {
		return "", err
	}
	for attempt := 1; ; attempt++ {
		id, wait, err := submitOnce(gateway, request, apiKey, fmt.Sprintf("%x", key))
		if err == nil || wait == 0 || attempt == submitAttempts {
			return id, err
		}
		time.Sleep(wait)
	}
}

// submitOnce says after which time another attempt may succeed, 0 for never.
func submitOnce(gateway, request, apiKey, key string) (string, time.Duration, error) {
	post, err := http.NewRequest("POST", gateway+"/v1/jobs", bytes.NewBufferString(request))
	if err != nil {
		return "", 0, err
	}
	post.Header.Set("Content-Type", "application/json")
	post.Header.Set("Idempotency-Key", key)
	if apiKey != "" {
		post.Header.Set("Authorization", "Bearer "+apiKey)
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return "", time.Second, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", time.Second, err
	}
	if response.StatusCode < 300 {
		var job struct{ ID string }
		err := json.Unmarshal(body, &job)
		return job.ID, 0, err
	}
	err = errors.New(string(body))
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode < 500 {
		return "", 0, err
	}
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
	return "", time.Duration(seconds+1) * time.Second, err
}

// Follow tells everything beyond offset `after` as it comes, the end last.
func Follow(address, id string, after int64, tell func(Event)) error {
	cell := jobID.FindStringSubmatch(id)
	if cell == nil {
		return fmt.Errorf("%s is no job id", id)
	}
	r := &reader{id: id, prefix: "{c" + cell[1] + "}", first: after, read: after, offset: after, tell: tell}
	r.heard, r.known = map[int64]int{}, map[int64]int{}
	var giveUpAt time.Time // a server that never answered is not waited for
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		r.answered = false
		err := r.connect(address)
		if err == nil {
			return nil
		}
		if r.answered {
			giveUpAt, pause = time.Now().Add(patience), 50*time.Millisecond
		}
		if !passes(err) || time.Now().After(giveUpAt) {
			return err
		}
		if pause > time.Second {
			pause = time.Second
		}
		time.Sleep(pause)
	}
}

// A reader is what one consumer has of a job. It outlives connections.
type reader struct {
	id, prefix  string
	first, read int64  // read is its offset in the stream
	offset      int64  // what the consumer has; another one while a stream is read again
	claim       string // that wrote the last token which was read, of a job with several sequences
	several     bool
	heard       map[int64]int // tokens of each sequence
	known       map[int64]int // those of them that are still to be dropped from a stream that is read again
	answered    bool
	ended       bool
	tell        func(Event)
}

type entry struct {
	offset int64
	chunk  *Chunk
	end    *End
}

func (r *reader) key(kind string) string { return r.prefix + ":" + kind + ":" + r.id }

func (r *reader) connect(address string) error {
	redis, err := dial(address)
	if err != nil {
		return err
	}
	defer redis.Close()
	if err := r.startOver(redis); err != nil {
		return err
	}
	return r.follow(redis)
}

func (r *reader) follow(redis *Redis) error {
	lives, err := r.lives(redis)
	for err == nil && !r.ended {
		var entries []entry
		if entries, err = r.entries(redis, lives); err != nil { // after its status: an ended job shows its end if it has one
			break
		}
		lacking := len(entries) == 0 || r.hasGap(entries)
		if lacking && lives {
			if lives, err = r.lives(redis); lives && len(entries) > 0 {
				return fmt.Errorf("the stream of job %s lacks tokens", r.id)
			}
			continue
		}
		if lacking {
			if entries, err = r.rest(redis); err != nil {
				break
			}
		}
		r.claim = ""
		for _, item := range entries {
			r.take(item)
		}
		if r.several {
			r.claim, err = r.claimAt(redis)
		}
	}
	return err
}

// Several sequences may come in another order from a server that has forgotten tokens: the stream is read again.
func (r *reader) startOver(redis *Redis) error {
	run, err := r.field(redis, "run")
	r.several = run != nil
	if err != nil || run == nil { // one sequence, and every offset into it holds
		return err
	}
	if holds, err := r.holds(redis, run); err != nil || holds {
		return err
	}
	r.read = 0
	if r.first == 0 {
		for index, count := range r.heard {
			r.known[index] = count
		}
		return nil
	}
	r.first, r.offset = 0, 0 // what the consumer has of each sequence cannot be told
	r.heard, r.known = map[int64]int{}, map[int64]int{}
	r.tell(Event{Reset: true})
	return nil
}

// holds says whether the order of what was read goes on.
func (r *reader) holds(redis *Redis, run any) (bool, error) {
	if r.claim == "" {
		info, err := redis.Command("INFO", "server")
		if err != nil {
			return false, err
		}
		now := runID.FindStringSubmatch(info.(string))
		return now != nil && now[1] == run, nil
	}
	stored, err := r.field(redis, "n")
	if err != nil || stored == nil {
		return false, err
	}
	number, err := strconv.ParseInt(stored.(string), 10, 64)
	if err != nil {
		return false, err
	}
	claim, err := r.claimAt(redis)
	return claim == r.claim && r.read <= number, err
}

// claimAt is the claim that wrote the last token which was read: "" where it is not known.
func (r *reader) claimAt(redis *Redis) (string, error) {
	ends, err := r.field(redis, "eps")
	if err != nil || ends == nil || r.read == 0 {
		return "", err
	}
	for _, part := range strings.Fields(ends.(string)) {
		claim, end, _ := strings.Cut(part, ":")
		if behind, err := strconv.ParseInt(end, 10, 64); err == nil && r.read <= behind {
			return claim, nil
		}
	}
	return "", nil
}

func (r *reader) field(redis *Redis, name string) (any, error) {
	values, err := redis.Command("HMGET", r.key("j"), name)
	if err != nil {
		return nil, err
	}
	r.answered = true
	return values.([]any)[0], nil
}

func (r *reader) lives(redis *Redis) (bool, error) {
	for lostAt := time.Now().Add(forgotten); ; time.Sleep(500 * time.Millisecond) {
		status, err := r.field(redis, "st")
		if err != nil || status != nil {
			return status == "queued" || status == "running", err
		}
		if time.Now().After(lostAt) {
			return false, fmt.Errorf("no job %s: it never existed or has expired", r.id)
		}
	}
}

func (r *reader) entries(redis *Redis, lives bool) ([]entry, error) {
	words := []string{"XREAD", "COUNT", page}
	if lives {
		words = append(words, "BLOCK", blockMS)
	}
	reply, err := redis.Command(append(words, "STREAMS", r.key("t"), fmt.Sprintf("%d-0", r.read))...)
	if err != nil || reply == nil {
		return nil, err
	}
	return entriesOf(reply.([]any)[0].([]any)[1])
}

// rest is of a job that has ended and whose stream has expired or lacks something.
func (r *reader) rest(redis *Redis) ([]entry, error) {
	result, err := redis.Command("GET", r.key("r"))
	if err != nil {
		return nil, err
	}
	if result == nil {
		reply, err := redis.Command("XREVRANGE", r.key("t"), "+", "-", "COUNT", "1")
		if err != nil {
			return nil, err
		}
		last, err := entriesOf(reply)
		if err == nil && (len(last) == 0 || last[0].end == nil) {
			err = fmt.Errorf("job %s has ended and its tokens have expired", r.id)
		}
		return last, err
	}
	end, chunks, err := decodeResult([]byte(result.(string)))
	if err != nil {
		return nil, err
	}
	var offset int64
	entries := []entry{}
	for _, chunk := range chunks {
		offset += int64(len(chunk.TokenIDs))
		entries = append(entries, entry{offset: offset, chunk: chunk})
	}
	return append(entries, entry{offset: offset, end: end}), nil
}

func (r *reader) hasGap(entries []entry) bool {
	read := r.read
	for _, item := range entries {
		start := item.offset
		if item.chunk != nil {
			start -= int64(len(item.chunk.TokenIDs))
		}
		if start > read {
			return true
		}
		read = item.offset
	}
	return false
}

// take tells what the consumer does not have of an entry.
func (r *reader) take(item entry) {
	if item.end != nil {
		r.ended = true
		r.tell(Event{Offset: item.offset, End: item.end})
		return
	}
	chunk, count := item.chunk, len(item.chunk.TokenIDs)
	if beyond := int(item.offset - r.read); beyond < count { // an offset may lie inside of an entry
		count = beyond
	}
	if count <= 0 {
		return
	}
	r.read = item.offset
	known := r.known[chunk.Index]
	if known > count {
		known = count
	}
	r.known[chunk.Index] -= known
	count -= known
	if count == 0 {
		return
	}
	r.heard[chunk.Index] += count
	r.offset += int64(count)
	skip := len(chunk.TokenIDs) - count
	tokens := &Tokens{
		Text:         strings.Join(chunk.Texts[skip:], ""),
		Index:        chunk.Index,
		TokenIDs:     chunk.TokenIDs[skip:],
		FinishReason: chunk.FinishReason,
	}
	if chunk.Logprobs != nil {
		tokens.Logprobs = chunk.Logprobs[skip:]
	}
	r.tell(Event{Offset: r.offset, Tokens: tokens})
}

func entriesOf(reply any) ([]entry, error) {
	entries := []entry{}
	for _, row := range reply.([]any) {
		pair := row.([]any)
		number, _, _ := strings.Cut(pair[0].(string), "-")
		offset, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, err
		}
		fields := pair[1].([]any)
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == "d" {
				chunk, end, err := decodeEntry([]byte(fields[i+1].(string)))
				if err != nil {
					return nil, err
				}
				entries = append(entries, entry{offset, chunk, end})
			}
		}
	}
	return entries, nil
}
