package console

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/jpeg"
	"image/png"
	"strings"
)

// Bounds of a picture.
const (
	maxPicture = 4 << 20  // bytes
	maxPixels  = 32 << 20 // which a browser unpacks
)

// Picture is a part of a message that is no text.
type Picture struct {
	// Type is that of the bytes, else the one that the message names.
	Type  string `json:"type"`
	Bytes int    `json:"bytes,omitempty"`
	Data  []byte `json:"data,omitempty"` // of a PNG or JPEG that there is room for
	URL   string `json:"url,omitempty"`  // of one that is not in the message; it is not loaded
}

// picturesOf reads the parts of a message that are no text; left is the number of bytes
// that there is room for.
func picturesOf(raw json.RawMessage, left *int) []Picture {
	var m struct {
		Content json.RawMessage `json:"content"`
	}
	var parts []messagePart
	if json.Unmarshal(raw, &m) != nil || len(m.Content) == 0 || m.Content[0] != '[' || json.Unmarshal(m.Content, &parts) != nil {
		return nil
	}
	var out []Picture
	for _, p := range parts {
		kind, url := p.source()
		if kind == "" {
			continue
		}
		if *left -= turnSize; *left <= 0 {
			break
		}
		out = append(out, pictureOf(kind, url, left))
	}
	return out
}

// messagePart is a part of a message of OpenAI chat.
type messagePart struct {
	Type     string          `json:"type"`
	ImageURL json.RawMessage `json:"image_url"` // an object with a URL; some engines take a URL
	Audio    struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
	File struct {
		Name string `json:"filename"`
		Data string `json:"file_data"`
	} `json:"file"`
}

// source returns the kind of the part and the URL with its data. The kind of a text is empty.
func (p *messagePart) source() (kind, url string) {
	switch p.Type {
	case "", "text", "input_text", "output_text", "refusal":
		return "", ""
	case "image_url", "input_image":
		var of struct {
			URL string `json:"url"`
		}
		if json.Unmarshal(p.ImageURL, &url) != nil {
			_ = json.Unmarshal(p.ImageURL, &of) // another form has no URL
			url = of.URL
		}
		return "image", url
	case "input_audio":
		return "audio", "data:audio/" + p.Audio.Format + ";base64," + p.Audio.Data
	case "file":
		return strings.TrimSpace("file " + p.File.Name), p.File.Data
	default:
		return p.Type, ""
	}
}

// pictureOf describes what a URL has, or leads to. Only the bytes tell that it is a picture
// that a browser shows.
func pictureOf(kind, url string, left *int) Picture {
	head, data, inside := strings.Cut(url, ",")
	if !inside || !strings.HasPrefix(head, "data:") {
		return Picture{Type: cell(kind), URL: cell(url)}
	}
	if named, _, _ := strings.Cut(strings.TrimPrefix(head, "data:"), ";"); named != "" {
		kind = named
	}
	out := Picture{Type: cell(kind), Bytes: len(data)}
	if !strings.HasSuffix(head, ";base64") {
		return out
	}
	out.Bytes = base64.StdEncoding.DecodedLen(len(data)) - strings.Count(data[max(len(data)-2, 0):], "=")
	if out.Bytes > maxPicture || len(data) > *left {
		return out
	}
	decoded, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return out
	}
	if form := formOf(decoded); form != "" {
		*left -= len(data)
		out.Type, out.Data = form, decoded
	}
	return out
}

// formOf returns the type of a picture that a browser may unpack; empty: it is none.
func formOf(data []byte) string {
	form, config := "", image.Config{}
	var err error
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		form = "image/png"
		config, err = png.DecodeConfig(bytes.NewReader(data))
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		form = "image/jpeg"
		config, err = jpeg.DecodeConfig(bytes.NewReader(data))
	}
	if err != nil || config.Width <= 0 || config.Height <= 0 || config.Width > maxPixels/config.Height {
		return ""
	}
	return form
}
