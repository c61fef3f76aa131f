// samite/mask.hpp: the mask language, the zoo of masks, tile maps and pictures.
#pragma once
#include <samite/mask/any_mask.hpp>
#include <samite/mask/basic.hpp>
#include <samite/mask/block.hpp>
#include <samite/mask/causal.hpp>
#include <samite/mask/dflash.hpp>
#include <samite/mask/document.hpp>
#include <samite/mask/draw.hpp>
#include <samite/mask/padding.hpp>
#include <samite/mask/prefix.hpp>
#include <samite/mask/strided.hpp>
#include <samite/mask/tile_map.hpp>
#include <samite/mask/tree.hpp>
#include <samite/mask/window.hpp>
