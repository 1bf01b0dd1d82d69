package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Silence of a server that owes a reply: longer than any XREAD here blocks.
const maxSilence = 15 * time.Second

const passing = " LOADING MASTERDOWN CLUSTERDOWN TRYAGAIN MOVED ASK READONLY UNBLOCKED BUSY "

// Redis is a connection: one command after the other, replies as nil, int64, string and []any.
type Redis struct {
	connection net.Conn
	replies    *bufio.Reader
}

// A refusal is the server's reply to a command that it does not do.
type refusal string

func (r refusal) Error() string { return string(r) }

// passes tells of an error whether another attempt may succeed: a lost connection, a server that is not ready.
func passes(err error) bool {
	var refused refusal
	if errors.As(err, &refused) {
		code, _, _ := strings.Cut(string(refused), " ")
		return strings.Contains(passing, " "+code+" ")
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// dial takes redis://user:password@host:port/database, or rediss:// for TLS.
func dial(address string) (*Redis, error) {
	target, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	host, port := target.Hostname(), target.Port()
	if port == "" {
		port = "6379"
	}
	dialer, where := &net.Dialer{Timeout: maxSilence}, net.JoinHostPort(host, port)
	var connection net.Conn
	if target.Scheme == "rediss" {
		connection, err = tls.DialWithDialer(dialer, "tcp", where, nil)
	} else {
		connection, err = dialer.Dial("tcp", where)
	}
	if err != nil {
		return nil, err
	}
	redis := &Redis{connection, bufio.NewReader(connection)}
	if err := redis.prepare(target); err != nil {
		redis.Close()
		return nil, err
	}
	return redis, nil
}

func (r *Redis) prepare(target *url.URL) error {
	if password, given := target.User.Password(); given {
		words := []string{"AUTH", password}
		if user := target.User.Username(); user != "" {
			words = []string{"AUTH", user, password}
		}
		if _, err := r.Command(words...); err != nil {
			return err
		}
	}
	if database := strings.Trim(target.Path, "/"); database != "" {
		_, err := r.Command("SELECT", database)
		return err
	}
	return nil
}

func (r *Redis) Close() { r.connection.Close() }

func (r *Redis) Command(words ...string) (any, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&out, "$%d\r\n%s\r\n", len(word), word)
	}
	r.connection.SetDeadline(time.Now().Add(maxSilence))
	if _, err := io.WriteString(r.connection, out.String()); err != nil {
		return nil, err
	}
	reply, err := r.reply()
	if refused, isRefused := reply.(refusal); err == nil && isRefused {
		return nil, refused
	}
	return reply, err
}

func (r *Redis) reply() (any, error) {
	line, err := r.replies.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimSuffix(line[1:], "\r\n")
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return refusal(rest), nil
	}
	number, err := strconv.ParseInt(rest, 10, 64)
	if err != nil || kind != ':' && kind != '$' && kind != '*' {
		return nil, errors.New("this is no Redis server")
	}
	if kind == ':' {
		return number, nil
	}
	if number < 0 {
		return nil, nil
	}
	if kind == '$' {
		text := make([]byte, number+2)
		_, err := io.ReadFull(r.replies, text)
		return string(text[:number]), err
	}
	items := make([]any, number)
	for i := range items {
		if items[i], err = r.reply(); err != nil {
			return nil, err
		}
	}
	return items, nil
}
