package desktop

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"iter"

	"github.com/jezek/xgb/xproto"
)

const (
	// maxPixels bounds a display, since memory has its whole picture.
	maxPixels = 64 << 20
	// stripBytes bounds the bytes of one answer of the display.
	stripBytes = 4 << 20
	// maxPNG bounds the bytes of a screenshot.
	maxPNG = 32 << 20
)

// scaled returns the size of a screenshot of a display.
func scaled(width, height, maxSide int) (w, h int) {
	longer := max(width, height)
	if maxSide == 0 || longer <= maxSide {
		return width, height
	}
	return max((width*maxSide+longer/2)/longer, 1), max((height*maxSide+longer/2)/longer, 1)
}

// at returns the point of the display that a point of a screenshot shows.
func (d *display) at(x, y, maxSide int) (image.Point, error) {
	w, h := scaled(d.width, d.height, maxSide)
	if x >= w || y >= h {
		return image.Point{}, &InvalidError{"x, y", fmt.Sprintf("%d, %d", x, y), fmt.Sprintf("a point of the %d x %d pixels", w, h)}
	}
	return image.Pt((2*x+1)*d.width/(2*w), (2*y+1)*d.height/(2*h)), nil
}

// screenshot returns the display as PNG.
func (d *display) screenshot(maxSide int) ([]byte, error) {
	full, err := d.picture()
	if err != nil {
		return nil, err
	}
	if w, h := scaled(d.width, d.height, maxSide); w != d.width || h != d.height {
		full = shrink(full, w, h)
	}
	var out bytes.Buffer
	if err := png.Encode(&out, full); err != nil {
		return nil, fmt.Errorf("write the screenshot: %w", err)
	}
	if out.Len() > maxPNG {
		return nil, fmt.Errorf("the screenshot has %d bytes, at most %d are possible: ask for a smaller one with max_side", out.Len(), maxPNG)
	}
	return out.Bytes(), nil
}

// shrink returns a smaller picture. Each of its pixels is the mean of the area that it
// shows.
func shrink(from *image.RGBA, w, h int) *image.RGBA {
	const colours = 3
	fw, fh := from.Bounds().Dx(), from.Bounds().Dy()
	to := image.NewRGBA(image.Rect(0, 0, w, h))
	sums := make([]uint64, colours*fw) // of the rows under one row
	for y := range h {
		clear(sums)
		for fy, rows := range shares(y, h, fh) {
			row := from.Pix[fy*from.Stride:]
			for x := range fw {
				for c := range colours {
					sums[colours*x+c] += rows * uint64(row[4*x+c])
				}
			}
		}
		row := to.Pix[y*to.Stride:]
		for x := range w {
			var sum [colours]uint64
			for fx, columns := range shares(x, w, fw) {
				for c := range colours {
					sum[c] += columns * sums[colours*fx+c]
				}
			}
			for c := range colours {
				row[4*x+c] = byte((sum[c] + uint64(fw*fh/2)) / uint64(fw*fh))
			}
			row[4*x+3] = 0xff
		}
	}
	return to
}

// shares are the pixels of a line of many under the pixel n of a line of few, and the share
// of each. The sum of the shares is many.
func shares(n, few, many int) iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		for at := n * many / few; at*few < (n+1)*many; at++ {
			if !yield(at, uint64(min((at+1)*few, (n+1)*many)-max(at*few, n*many))) {
				return
			}
		}
	}
}

// picture reads the pixels of the display.
func (d *display) picture() (*image.RGBA, error) {
	if d.width*d.height > maxPixels {
		return nil, fmt.Errorf("the display has %d x %d pixels, at most %d are possible", d.width, d.height, maxPixels)
	}
	red, green, blue, err := d.channels()
	if err != nil {
		return nil, err
	}
	m := image.NewRGBA(image.Rect(0, 0, d.width, d.height))
	rows := max(stripBytes/(4*d.width), 1)
	for top := 0; top < d.height; top += rows {
		n := min(rows, d.height-top)
		got, err := xproto.GetImage(d.conn, xproto.ImageFormatZPixmap, xproto.Drawable(d.root), 0, int16(top), uint16(d.width), uint16(n), ^uint32(0)).Reply()
		if err != nil {
			return nil, fmt.Errorf("read the display: %w", explain(err))
		}
		if len(got.Data) < 4*d.width*n {
			return nil, errors.New("read the display: its answer is too short")
		}
		to := m.Pix[top*m.Stride:]
		for i := 0; i < 4*d.width*n; i += 4 {
			to[i], to[i+1], to[i+2], to[i+3] = got.Data[i+red], got.Data[i+green], got.Data[i+blue], 0xff
		}
	}
	return m, nil
}

// channels returns the places of the colours in the four bytes of a pixel.
func (d *display) channels() (red, green, blue int, err error) {
	screen := d.setup.DefaultScreen(d.conn)
	four := false
	for _, f := range d.setup.PixmapFormats {
		four = four || f.Depth == screen.RootDepth && f.BitsPerPixel == 32
	}
	for _, depth := range screen.AllowedDepths {
		for _, v := range depth.Visuals {
			if v.VisualId != screen.RootVisual || !four || v.Class != xproto.VisualClassTrueColor || v.RedMask != 0xff0000 || v.GreenMask != 0xff00 || v.BlueMask != 0xff {
				continue
			}
			if d.setup.ImageByteOrder == xproto.ImageOrderMSBFirst {
				return 1, 2, 3, nil
			}
			return 2, 1, 0, nil
		}
	}
	return 0, 0, 0, fmt.Errorf("the display has pixels of %d bits: want a display of 24 bits", screen.RootDepth)
}
