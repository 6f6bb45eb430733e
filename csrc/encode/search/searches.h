// Every search and grid that formats name (quant/encoding.h).
#pragma once

#include "encode/search/affine_super.h"
#include "encode/search/points.h"
#include "encode/search/symmetric_super.h"
