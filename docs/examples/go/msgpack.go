package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

const maxDepth = 12

var errShort = errors.New("msgpack: the message is cut short")

// decode gives the one value that the bytes hold: nil, bool, int64, float64, string, []byte, []any or map[string]any.
// It knows msgpack as octavo writes it, without extension types. Bytes from a queue are not trusted.
func decode(data []byte) (any, error) {
	in := &input{data}
	value, err := in.value(0)
	if err == nil && len(in.rest) > 0 {
		err = errors.New("msgpack: bytes behind the message")
	}
	return value, err
}

type input struct{ rest []byte }

func (in *input) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("msgpack: nested too deep")
	}
	head, err := in.take(1)
	if err != nil {
		return nil, err
	}
	switch tag := head[0]; {
	case tag < 0x80:
		return int64(tag), nil
	case tag < 0x90:
		return in.object(uint64(tag&0x0f), depth)
	case tag < 0xa0:
		return in.array(uint64(tag&0x0f), depth)
	case tag < 0xc0:
		return in.text(uint64(tag & 0x1f))
	case tag >= 0xe0:
		return int64(int8(tag)), nil
	default:
		return in.tagged(tag, depth)
	}
}

func (in *input) tagged(tag byte, depth int) (any, error) {
	switch tag {
	case 0xc0:
		return nil, nil
	case 0xc2, 0xc3:
		return tag == 0xc3, nil
	case 0xca:
		bits, err := in.number(4)
		return float64(math.Float32frombits(uint32(bits))), err
	case 0xcb:
		bits, err := in.number(8)
		return math.Float64frombits(bits), err
	case 0xcc, 0xcd, 0xce, 0xcf:
		number, err := in.number(1 << (tag - 0xcc))
		return int64(number), err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := 1 << (tag - 0xd0)
		number, err := in.number(size)
		unused := 64 - 8*size
		return int64(number<<unused) >> unused, err // with its sign
	case 0xc4, 0xc5, 0xc6:
		return sized(in, 1<<(tag-0xc4), func(count uint64) (any, error) { return in.take(count) })
	case 0xd9, 0xda, 0xdb:
		return sized(in, 1<<(tag-0xd9), in.text)
	case 0xdc, 0xdd:
		return sized(in, 2<<(tag-0xdc), func(count uint64) (any, error) { return in.array(count, depth) })
	case 0xde, 0xdf:
		return sized(in, 2<<(tag-0xde), func(count uint64) (any, error) { return in.object(count, depth) })
	}
	return nil, fmt.Errorf("msgpack: unexpected byte 0x%x", tag)
}

func sized(in *input, size int, read func(uint64) (any, error)) (any, error) {
	count, err := in.number(size)
	if err != nil {
		return nil, err
	}
	return read(count)
}

func (in *input) take(count uint64) ([]byte, error) {
	if count > uint64(len(in.rest)) {
		return nil, errShort
	}
	taken := in.rest[:count]
	in.rest = in.rest[count:]
	return taken, nil
}

func (in *input) number(size int) (uint64, error) {
	data, err := in.take(uint64(size))
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[8-size:], data)
	return binary.BigEndian.Uint64(wide[:]), nil
}

func (in *input) text(count uint64) (any, error) {
	data, err := in.take(count)
	return string(data), err
}

func (in *input) array(count uint64, depth int) (any, error) {
	items := []any{}
	for ; count > 0; count-- {
		item, err := in.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (in *input) object(count uint64, depth int) (any, error) {
	object := map[string]any{}
	for ; count > 0; count-- {
		name, err := in.value(depth + 1)
		if err != nil {
			return nil, err
		}
		text, isText := name.(string)
		if !isText {
			return nil, errors.New("msgpack: names in a map are strings")
		}
		if object[text], err = in.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return object, nil
}
