#include "textflag.h"

// func returning() uintptr
TEXT ·returning(SB), NOSPLIT, $0-8
	MOVD $returns<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

TEXT returns<>(SB), NOSPLIT|NOFRAME, $0
	RET
