package desktop

import (
	"image"

	"github.com/jezek/xgb/xproto"
)

// pointer returns the place of the pointer.
func (d *display) pointer() (image.Point, error) {
	at, err := xproto.QueryPointer(d.conn, d.root).Reply()
	if err != nil {
		return image.Point{}, err
	}
	return image.Pt(int(at.RootX), int(at.RootY)), nil
}
