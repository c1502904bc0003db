package placement

// pinnedPlans as UPDATE=1 writes them (pinned_test.go).
var pinnedPlans = map[string]string{
	"full after anything":         `moved 22, 1.002059, 1.003396: f36909ba`,
	"full after anything, near":   `moved 19, 1.003526 near 0.3412, 1.002376 near 0.4061: cace6760`,
	"full after anything, uneven": `moved 20, 1.005572, 1.005974: e4b0e3b9`,
	"full, even": `moved 32, 1.001774, 1.001244: b5fe82c5
moved 15, 1.003046, 1.001066: a2cad118
moved 16, 1.002413, 1.002537: 199b4cc2`,
	"full, large": `moved 160, 1.000896, 1.000797: 65289980
moved 118, 1.001348, 1.000863: 7522c8a3`,
	"full, near": `moved 36, 1.004461 near 0.3970, 1.010010 near 0.4889: 50b9671f
moved 17, 1.008746 near 0.3538, 1.017162 near 0.3828: c4b31768`,
	"full, near and uneven": `moved 50, 1.003419 near 0.3404, 1.003065 near 0.3614: 95bfe302
moved 29, 1.004553 near 0.5058, 1.002791 near 0.3280: 8885e435
moved 36, 1.004910 near 0.3201, 1.004547 near 0.2869: cca4815e`,
	"full, no spare slot": `moved 24, 1.034266, 1.053494: 21814bed
moved 9, 1.055592, 1.026725: 1534694b`,
	"full, uneven": `moved 38, 1.003878, 1.002935: 85859d8b
moved 30, 1.001584, 1.001503: 500596e1
moved 27, 1.002110, 1.002711: 03c3a1fd
moved 24, 1.003042, 1.002329: 01ac2301`,
	"full, uneven and skewed": `moved 38, 1.010037, 1.008459: c4e07e46
moved 29, 1.005943, 1.299045: a9b937b4
moved 25, 1.018346, 1.037681: 14f7d447
moved 19, 1.065410, 1.036740: 2c81bf6a`,
	"full, very skewed": `moved 48, 1.003046, 1.001905: b132bdcc
moved 23, 1.005161, 1.004123: 037552cb`,
	"groups, if they pay": `moved 128, 1.001045 home 1.0000, 1.004153 home 1.0000: e4b5348a
moved 75, 1.010847 home 1.0000, 1.010038 home 0.9563: 14638048
moved 74, 1.006051 home 1.0000, 1.000756 home 1.0000: c2e68e1e`,
	"groups, kept": `moved 96, 1.010653 home 0.9968, 1.009158 home 1.0000: 5a8ae954
moved 68, 1.005929 home 1.0000, 1.011194 home 0.9749: 84e71c3f
moved 63, 1.000907 home 1.0000, 1.004912 home 1.0000: f0a8a3ad`,
	"groups, near": `moved 96, 1.001579 home 1.0000 near 0.5203, 1.004886 home 1.0000 near 0.4581: a7e44489
moved 62, 1.009484 home 1.0000 near 0.5347, 1.006065 home 1.0000 near 0.4791: 70e3c813`,
	"groups, skewed": `moved 72, 1.220209 home 0.9690, 1.490656 home 1.0000: c90b1bf7
moved 43, 1.448356 home 0.9634, 2.162278 home 0.9826: 2d8b41b0
moved 29, 1.552875 home 0.9699, 1.074787 home 0.9686: 34e16181`,
	"groups, uneven": `moved 66, 1.158160 home 1.0000, 1.414554 home 1.0000: 3f060f22
moved 41, 1.090532 home 0.9605, 1.221286 home 1.0000: 96d302fb
moved 54, 1.067497 home 0.9908, 1.060458 home 0.9849: 5277ba2f
moved 53, 1.241200 home 0.9937, 1.020330 home 0.9514: 3dc285f4`,
	"step from anything, 0": `moved 8, 1.028018, 1.005278: 403229b2
moved 5, 1.051211, 1.001544: e92cfe5c
moved 4, 1.000000, 1.035798: d4737574`,
	"step from anything, 1": `moved 8, 1.010629, 1.053377: 81b050d2
moved 12, 1.043779, 1.016220: e9aac715
moved 11, 1.043234, 1.052128: b88b9f08`,
	"step from anything, 2": `moved 13, 1.007506 near 0.3156, 1.015676 near 0.4017: a3c235b9
moved 12, 1.038480 near 0.4158, 1.016579 near 0.4283: 037dd3a5
moved 11, 1.019588 near 0.3311, 1.038710 near 0.3626: db591920`,
	"step from anything, 3": `moved 13, 1.041435, 1.015972: 6fcddc84
moved 7, 1.048757, 1.040297: 03de6a00
moved 10, 1.054621, 1.025687: aac1b40e`,
	"step from anything, 4": `moved 16, 1.011821, 1.004866: a6d492b5
moved 13, 1.017032, 1.016162: 412dc9fd
moved 10, 1.015324, 1.010139: e4ae91fa`,
	"step from anything, 5": `moved 18, 1.093584 near 0.3944, 1.010952 near 0.4435: 5cae4eeb
moved 24, 1.008017 near 0.3528, 1.008510 near 0.2710: 6770bdb0
moved 14, 1.014223 near 0.2995, 1.008665 near 0.4982: 9a15d8ad`,
	"step from anything, 6": `moved 17, 1.073160, 1.151084: ca2246c0
moved 7, 1.011148, 1.004014: 9d535060
moved 9, 1.064150, 1.011994: 646ed9d8`,
	"step from anything, 7": `moved 17, 1.031468, 1.028980: 6adc62fa
moved 9, 1.191073, 1.085805: 34aefa21
moved 14, 1.069464, 1.054024: 4d96129c`,
	"step, even": `moved 72, 1.000340, 1.000718, 1.000879: 1f04a31d
moved 8, 1.010133, 1.015253, 1.010319: b5bd838c
moved 18, 1.009624, 1.009201, 1.006577: 07795a5c
moved 11, 1.007788, 1.004403, 1.005926: c4863b7d`,
	"step, free": `moved 32, 1.001395, 1.001956: 078c8290
moved 11, 1.005474, 1.015919: 7a5a30a0
moved 13, 1.011369, 1.058438: 888cf0f9
moved 17, 1.001506, 1.017408: 68b04686`,
	"step, large": `moved 160, 1.000770, 1.001152: a9a6c1b0
moved 25, 1.003750, 1.005150: 9b48d6b4
moved 32, 1.002724, 1.003285: f0144c4e
moved 25, 1.003380, 1.003150: ad2ac43d`,
	"step, near": `moved 48, 1.003444 near 0.4457, 1.003797 near 0.5622: dd922d1b
moved 19, 1.019776 near 0.2621, 1.016959 near 0.3624: e32e6824
moved 21, 1.018796 near 0.3724, 1.017846 near 0.3617: 4ee3ae80
moved 15, 1.012872 near 0.4637, 1.028483 near 0.4613: 1311e6d5`,
	"step, near and uneven": `moved 48, 1.002449 near 0.4426, 1.001743 near 0.2985: ee987362
moved 16, 1.013543 near 0.3470, 1.005998 near 0.2089: 8661a0d3
moved 27, 1.011030 near 0.3750, 1.012950 near 0.1940: 5bfa6362
moved 17, 1.039490 near 0.4280, 1.011350 near 0.2610: 7891ec9f`,
	"step, uneven": `moved 72, 1.002047, 1.001559, 1.003492: 97bd5bc3
moved 24, 1.012312, 1.016302, 1.019938: 54641156
moved 21, 1.009801, 1.015418, 1.014251: 39113db1
moved 21, 1.014861, 1.021870, 1.017624: 81b30309
moved 27, 1.017980, 1.008904, 1.013647: da993a82
moved 22, 1.013603, 1.017198, 1.016064: d7e2cb9a`,
	"step, uneven and skewed": `moved 45, 1.039857, 1.050293, 1.035964: 45ce5447
moved 30, 1.049232, 1.006120, 1.021018: eec35829
moved 29, 1.078794, 1.019702, 1.007071: 092dda1a
moved 30, 1.005901, 1.054001, 1.050497: 090c6a3a
moved 26, 1.041122, 1.025917, 1.022283: a1bd3832
moved 25, 1.018584, 1.035840, 1.025011: 0a6865e3`,
	"step, very skewed": `moved 72, 1.002045, 1.002115, 1.003745: 4b5350ae
moved 34, 1.005016, 1.052887, 1.013511: f9633e59
moved 30, 1.039424, 1.014584, 1.006856: 25cfa483
moved 29, 1.007251, 1.008230, 1.042586: ffc9e96d`,
}
