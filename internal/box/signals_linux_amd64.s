#include "textflag.h"

// func returning() uintptr
TEXT ·returning(SB), NOSPLIT, $0-8
	LEAQ returns<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

TEXT returns<>(SB), NOSPLIT|NOFRAME, $0
	RET
